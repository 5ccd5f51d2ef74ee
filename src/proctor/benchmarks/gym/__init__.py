"""Any gymnasium environment, registered here or kept on the Hub."""
