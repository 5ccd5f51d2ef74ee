"""What a training logs, and when it stops."""
