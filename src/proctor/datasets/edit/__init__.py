"""Edits of datasets: packets and columns are copied, pictures are not encoded again."""
