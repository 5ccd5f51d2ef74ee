"""X-VLA: a Florence-2 encoder and an action transformer with soft prompts."""
