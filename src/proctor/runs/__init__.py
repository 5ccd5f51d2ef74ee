"""The run folder: everything about one run, on disk."""
