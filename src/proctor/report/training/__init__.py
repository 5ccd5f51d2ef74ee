"""The page of a training."""
