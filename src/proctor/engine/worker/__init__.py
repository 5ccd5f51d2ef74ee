"""The child process: simulators, episodes and their results."""
