"""One run's page: its numbers, timeline, curves and failures."""
