"""Imported by LeRobot, never called here."""

from torch import nn


class Transform(nn.Module):
    pass


functional = None


def __getattr__(name):
    return Transform
