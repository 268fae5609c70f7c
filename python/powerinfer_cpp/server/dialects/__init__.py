"""The interfaces that clients know: OpenAI's, Anthropic's and llama.cpp's, over one request."""
