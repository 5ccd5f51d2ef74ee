"""Checks of the parts of a dataset, which ``proctor.datasets.check`` runs."""
