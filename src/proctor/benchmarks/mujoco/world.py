"""Physics state of a MuJoCo world, for digests."""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.features import Array


def world_state(data: Any) -> Array:
    """Return a copy of everything that moves or that a reset places in an MjData, float64.

    Joints are not enough: fixtures and goals are placed by changing the model, which shows only in
    the poses of bodies and sites.
    """
    parts = (data.qpos, data.qvel, data.xpos, data.xquat, data.site_xpos)
    return np.concatenate([np.ravel(part) for part in parts], dtype=np.float64)
