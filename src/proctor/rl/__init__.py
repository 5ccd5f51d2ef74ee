"""Online reinforcement learning: actors collect transitions, a learner trains on them."""
