"""``proctor rollout``: a policy drives, and what is recorded of it."""
