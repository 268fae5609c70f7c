"""A conversation in a terminal: its lines, commands and history."""
