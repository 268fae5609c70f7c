"""The engine in Python: models and sessions through the C API, GGUF files, sampling, memory."""
