"""ZeroMQ's protocol, without its library."""
