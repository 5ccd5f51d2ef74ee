"""Flags: parsing, help, merging with files."""
