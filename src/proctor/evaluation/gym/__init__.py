"""Environments of Gymnasium from benchmarks."""
