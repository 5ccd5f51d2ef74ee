"""SO-101 simulator of the benchmark: one world, controlled 30 times a second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proctor.benchmarks.base import ROBOT, xyz
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.benchmarks.so101 import FPS
from proctor.benchmarks.so101.kinematics import from_units, to_units
from proctor.benchmarks.so101.world import So101World
from proctor.features import ENVIRONMENT_STATE, IMAGES, STATE, Array, Observation
from proctor.types import CLOSEST, SUBGOALS, EpisodeSpec, StepResult


class So101Sim:
    """One SO-101 with a cube and a bin."""

    def __init__(self, image_size: tuple[int, int]) -> None:
        self._world = So101World()
        self._height, self._width = image_size
        self.scene_edit: SceneEdit | None = None

    def reset(self, spec: EpisodeSpec) -> None:
        """Put the arm into its home pose, and place cube and bin by the spec's seed."""
        self._world.reset(spec.seed)

    def step(self, action: Array) -> StepResult:
        """Drive the joints towards ``action`` for a 30th of a second."""
        for joint, angle in from_units(np.asarray(action, dtype=np.float64)).items():
            self._world.set_target(joint, angle)
        self._world.step(1 / FPS)
        with proctor_code():
            success = self._world.succeeded()
            lifted, above_bin = self._world.subgoals()
            share = 1.0 if success else 2 / 3 if above_bin else 1 / 3 if lifted else 0.0
            scores = {SUBGOALS: share, CLOSEST: self._world.bin_distance()}
            return StepResult(float(success), success, terminated=success, scores=scores)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return joint positions and velocities, and the poses of bodies."""
        return self._world.physics()

    def coordinates(self) -> dict[str, float]:
        """Return the positions of cube, bin and hand, in metres."""
        position, _ = self._world.cube_pose()
        return {
            **xyz("cube", position),
            **xyz("bin", self._world.bin_position()[:2]),
            **xyz(f"{ROBOT} hand", self._world.hand_position()),
        }

    def start_state(self) -> dict[str, float]:
        """Return the angles of the arm and the poses of cube and bin."""
        return self._world.start_state()

    def close(self) -> None:
        """Free the renderer."""
        self._world.close()

    def _observe(self, key: str) -> Array:
        if key == STATE:
            return to_units(self._world.angles())
        if key == ENVIRONMENT_STATE:
            return self._world.scene_state()
        camera = key.removeprefix(IMAGES)
        if camera not in self._world.cameras:
            raise KeyError(key)
        return self._world.render(camera, self._height, self._width, self.scene_edit)
