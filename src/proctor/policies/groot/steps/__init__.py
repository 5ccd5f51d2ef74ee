"""GR00T's processors."""
