"""Messages between engine and workers, and shared memory."""
