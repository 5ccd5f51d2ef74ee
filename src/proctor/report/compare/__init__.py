"""Comparisons of two or more runs."""
