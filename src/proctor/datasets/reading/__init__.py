"""What a dataset that is open is made of."""
