"""What others say to a policy and hear from it: bytes to records and back. No sockets."""
