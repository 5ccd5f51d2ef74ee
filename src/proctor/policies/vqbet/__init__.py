"""VQ-BeT."""
