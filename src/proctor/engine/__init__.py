"""The engine: schedules episodes over worker processes and batches their inference requests."""
