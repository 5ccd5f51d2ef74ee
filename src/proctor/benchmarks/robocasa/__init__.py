"""RoboCasa 0.2: 24 atomic kitchen tasks."""
