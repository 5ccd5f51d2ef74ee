"""Evaluation cards, published claims and the Hub's result files."""
