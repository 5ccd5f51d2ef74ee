"""OpenGL, and what can be probed of it."""
