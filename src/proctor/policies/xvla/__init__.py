"""X-VLA: a Florence-2 that sees and reads, and a transformer with soft prompts that acts."""
