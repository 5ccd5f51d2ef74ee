"""From a dataset and a network to checkpoints."""
