"""Stands in for torchvision where it is not installed: just what LeRobot's ACT and Diffusion use.

The ResNet is ours (held to LeRobot's golden feature maps in tests/golden), so that parity tests
compare everything around it.
"""

from torchvision import models, ops, transforms

__version__ = "0.0.0"
__all__ = ["models", "ops", "transforms"]
