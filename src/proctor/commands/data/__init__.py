"""``proctor data VERB``."""
