"""Teleoperators without motors: a script, the keyboard and gamepads."""
