"""Recording: an episode is staged in its own folder, then appended to the dataset."""
