"""Callbacks: outputs of a run, such as its journal, progress, dataset, videos and W&B."""
