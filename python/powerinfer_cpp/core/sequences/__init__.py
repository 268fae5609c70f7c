"""What is computed for sequences of a session: tokens, embeddings, both with adapters."""
