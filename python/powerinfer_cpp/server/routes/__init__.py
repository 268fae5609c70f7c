"""What is served where: rows of a table (route.py), by what they serve."""
