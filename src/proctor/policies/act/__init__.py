"""Action Chunking with Transformers."""
