"""One evaluation, from its config to its results."""
