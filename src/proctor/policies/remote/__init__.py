"""Remote policies: inference by policy servers over the network, for many episodes at once."""
