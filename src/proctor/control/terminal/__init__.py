"""What an operator sees and types."""
