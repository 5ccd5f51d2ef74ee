"""Commands for robots."""
