"""Starting worker processes, and keeping them warm."""
