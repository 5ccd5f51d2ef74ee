"""Policies without weights: zero, random, and the benchmark's expert."""
