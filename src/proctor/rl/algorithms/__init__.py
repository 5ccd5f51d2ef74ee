"""Algorithms of the learner: each turns batches of transitions into parameter updates."""
