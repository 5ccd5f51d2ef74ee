"""Scripts that measure Proctor, behind one runner: ``python -m measurements --list``."""
