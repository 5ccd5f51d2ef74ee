"""TD-MPC."""
