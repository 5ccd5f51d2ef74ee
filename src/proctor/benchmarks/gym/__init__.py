"""Gymnasium environments as benchmarks: registered ones, and environments from the Hub."""
