"""A policy behind a wire: clients of several protocols, answered in common batches."""
