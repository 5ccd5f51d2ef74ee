"""Samples of a training."""
