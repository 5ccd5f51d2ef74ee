"""Logging of MuJoCo's warnings."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Log MuJoCo's warnings; by default it writes MUJOCO_LOG.TXT into the working directory."""
    import mujoco

    mujoco.set_mju_user_warning(_log.warning)
