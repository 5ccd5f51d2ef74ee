"""Messages between actors and the learner."""
