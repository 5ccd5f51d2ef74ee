"""Encodings of arrays and messages."""
