"""Network blocks that several policy families share."""
