"""What was decoded once and is kept for every process."""
