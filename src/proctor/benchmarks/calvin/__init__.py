"""CALVIN, environment D: the first instruction of each evaluation sequence."""
