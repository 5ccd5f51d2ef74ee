"""Caches of decoded columns and frames, shared by processes."""
