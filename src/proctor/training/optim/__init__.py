"""Optimisers, schedules and the optimiser step."""
