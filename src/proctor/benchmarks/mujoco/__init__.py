"""Shared code of benchmarks on MuJoCo."""
