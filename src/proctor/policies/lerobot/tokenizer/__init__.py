"""Tokenizers, and the prompts of language policies."""
