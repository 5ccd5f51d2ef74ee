"""The commands of the command line: one module each, with ``run(words) -> exit code``."""
