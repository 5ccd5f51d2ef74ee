"""LIBERO-plus simulator: LIBERO's, with another camera pose, robot pose or corrupted images."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from proctor.benchmarks.libero.sim import LiberoSim, LiberoSimSettings
from proctor.benchmarks.libero.tasks import STANDARD_SUITES
from proctor.benchmarks.libero.world import make_world
from proctor.benchmarks.libero_plus.camera import moved_camera
from proctor.benchmarks.libero_plus.noise import corrupted, noise_key
from proctor.benchmarks.libero_plus.package import make_plus_world
from proctor.benchmarks.libero_plus.tasks import PlusTask
from proctor.features import Array
from proctor.system.graphics.gl import can_render
from proctor.types import EpisodeSpec, StepResult

N_POSES = 500
_DEFAULT = np.array([0, -1.61037389e-01, 0, -2.44459747, 0, 2.22675220, np.pi / 4])
_PER_LENGTH = 100
_LENGTHS_RAD = (0.1, 0.2, 0.3, 0.4, 0.5)
_DIGITS = 8


@cache
def _poses() -> Array:
    draw, rows = np.random.RandomState(42), []
    for number in range(N_POSES):
        direction = draw.randn(len(_DEFAULT))
        direction = direction / np.linalg.norm(direction)
        pose = _DEFAULT + direction * _LENGTHS_RAD[number // _PER_LENGTH]
        rows.append([round(float(angle), _DIGITS) for angle in pose])
    return np.array(rows)


def init_pose(number: int) -> Array:
    """Return initial pose ``number`` (1 to 500) of the seven joints, in radians."""
    return np.array(_poses()[number - 1])


CAMERA = "agentview"
"""The camera that LIBERO-plus perturbs; the wrist camera never changes."""


class LiberoPlusSim(LiberoSim):
    """The simulator of one LIBERO-plus task."""

    def __init__(self, settings: LiberoSimSettings, plus: PlusTask) -> None:
        self._plus = plus
        self._seed = self._steps = 0
        super().__init__(settings)
        if plus.init_pose:
            # The init state then restores LIBERO's joints. What remains is the pose that the
            # controller prefers: its goal at first, and its null-space reference.
            self._env.robots[0].init_qpos = init_pose(plus.init_pose)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset to the spec's init state."""
        self._seed, self._steps = spec.seed, 0
        super().reset(spec)

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action."""
        self._steps += 1
        return super().step(action)

    def _open_world(self) -> Any:
        file, assets = self._settings.bddl_file, self._settings.assets
        if self._plus.needs_new_assets:
            return make_plus_world(file, assets, textures=can_render())
        cameras = {CAMERA: partial(moved_camera, view=self._plus.view)}
        return make_world(file, assets, textures=can_render(), cameras=cameras)

    def _render(self, camera: str, *, mirrored: bool) -> Array:
        image = super()._render(camera, mirrored=mirrored)
        if camera != CAMERA or not self._plus.noise:
            return image
        # LIBERO-plus corrupts the image as LIBERO renders it, upside down.
        raw = image[::-1, ::-1] if mirrored else image
        noisy = corrupted(raw, self._plus.noise, np.random.RandomState(self._noise_key()))
        return np.ascontiguousarray(noisy[::-1, ::-1] if mirrored else noisy)

    def _noise_key(self) -> int:
        suite = STANDARD_SUITES.index(self._plus.suite)
        return noise_key(self._seed, suite, self._plus.task_id, self._steps)
