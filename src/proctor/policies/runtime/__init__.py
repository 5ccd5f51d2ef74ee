"""Running a network: batches, devices, graphs."""
