"""Gymnasium environments, and those of its predecessor gym, as worlds.

Proctor's own benchmark ``gym`` uses these modules too, in this interpreter.
"""
