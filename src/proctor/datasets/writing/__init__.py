"""An episode's way into a dataset: a take, then its place among the others."""
