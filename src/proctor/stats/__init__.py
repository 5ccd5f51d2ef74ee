"""Statistics: success rates, differences of rates, and stop rules."""
