"""The Python API: the commands as functions, with the same words as their flags."""
