"""Codecs of the network protocols for policy inference: bytes to records and back, no sockets."""
