"""ACT that is told its task in words."""
