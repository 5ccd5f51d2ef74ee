"""The files of the format, each read and written in one place."""
