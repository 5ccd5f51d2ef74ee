"""Which instruction a robustness suite of LIBERO gives to a policy."""

from __future__ import annotations

from enum import Enum


class Prompt(Enum):
    """Source of the instructions."""

    CLEAN = "clean"
    """Words for the policy only: of the base task, or of the BDDL file if it changes them."""
    UPSTREAM = "upstream"
    """The text of the suite's own package (``task.language``), also where it is wrong."""
