"""Checkpoints: writing, state, evaluation and publishing."""
