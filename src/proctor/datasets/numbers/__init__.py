"""Columns of numbers: decoded, gathered for a whole batch, counted."""
