"""What all pages share: document, numbers and tables."""
