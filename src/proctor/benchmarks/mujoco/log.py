"""Where MuJoCo's warnings go."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Log them; left alone, MuJoCo writes MUJOCO_LOG.TXT into whatever folder it runs in."""
    import mujoco

    mujoco.set_mju_user_warning(_log.warning)
