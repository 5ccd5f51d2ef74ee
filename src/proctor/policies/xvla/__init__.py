"""X-VLA (Zheng et al., 2025): a Florence-2 encoder and an action transformer with soft prompts."""
