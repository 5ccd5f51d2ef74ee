"""Where a MuJoCo world is: what its simulators tell of themselves, for the digest."""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.features import Array


def world_state(data: Any) -> Array:
    """Return all that moves and all that a reset places, of an MjData: float64, a copy.

    Joints do not tell everything: fixtures and goals are placed by changing the model, and show in
    the poses of bodies and sites only.
    """
    parts = (data.qpos, data.qvel, data.xpos, data.xquat, data.site_xpos)
    return np.concatenate([np.ravel(part) for part in parts], dtype=np.float64)
