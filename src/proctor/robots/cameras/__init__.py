"""Cameras: OpenCV, ZMQ and RealSense, each read by its own thread."""
