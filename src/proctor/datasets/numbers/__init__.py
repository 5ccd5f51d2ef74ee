"""Columns of data files: decoding, gathering batches, and statistics."""
