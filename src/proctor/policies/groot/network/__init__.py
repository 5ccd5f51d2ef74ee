"""GR00T's network."""
