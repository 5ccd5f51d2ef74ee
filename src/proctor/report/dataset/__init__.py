"""The page of a dataset."""
