"""Recipes of benchmarks that need an interpreter of their own: record, installation, checks."""
