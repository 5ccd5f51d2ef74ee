"""LIBERO as it comes: a new environment for every episode, stepped and observed by robosuite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.libero.assets import find_assets
from proctor.benchmarks.libero.tasks import STANDARD_SUITES, bddl_file, read_init_states
from proctor.benchmarks.libero.world import _without_textures, import_libero
from proctor.benchmarks.mujoco.world import world_state
from proctor.errors import UsageError
from proctor.features import Array
from proctor.types import EpisodeSpec


def needs_assets(suites: Sequence[str] = STANDARD_SUITES) -> pytest.MarkDecorator:
    """Skip where LIBERO's meshes and textures could not be had (`make libero-assets` tries)."""
    reason = "LIBERO's assets are not here and could not be downloaded: make libero-assets says why"
    return pytest.mark.skipif(not _has_assets(suites), reason=reason)


def _has_assets(suites: Sequence[str]) -> bool:
    try:
        find_assets(None, suites)
    except (FileNotFoundError, UsageError):
        return False
    return True


@dataclass
class Course:
    """What happened in one episode, moment by moment; the first is the start."""

    worlds: list[Array]
    numbers: list[dict[str, Array]]
    successes: list[bool]
    fixtures: Array


def course_of(spec: EpisodeSpec, actions: Array, **cameras: Any) -> Course:
    """Play an episode the way LIBERO's users do: build, seed, hard reset, init state, settle."""
    import_libero()
    import libero.libero
    from libero.libero.envs.env_wrapper import ControlEnv

    libero.libero._assets_path_cache = str(find_assets(None))
    task = spec.task
    cameras = cameras or {"has_offscreen_renderer": False, "use_camera_obs": False}
    env = ControlEnv(bddl_file_name=str(bddl_file(task.suite, task.name)), **cameras)
    env.seed(spec.seed)
    env.env.reset()  # the wrapper's own swallows every error
    env.set_init_state(read_init_states(task.suite, task.name)[spec.init_state])
    for _ in range(10):
        seen, *_ = env.step([0, 0, 0, 0, 0, 0, -1])
    course = Course([world_state(env.sim.data._data)], [seen], [], env.sim.model.body_pos.copy())
    for action in actions:
        seen, _, done, _ = env.step(action)
        course.worlds.append(world_state(env.sim.data._data))
        course.numbers.append(seen)
        course.successes.append(done)
    env.close()
    return course


def without_textures(monkeypatch: Any) -> None:
    """Let LIBERO build its models faster; what it simulates is the same."""
    import_libero()
    from robosuite.utils.binding_utils import MjSim

    built = MjSim.from_xml_string
    monkeypatch.setattr(MjSim, "from_xml_string", partial(_built_bare, built))


def _built_bare(built: Any, xml: str) -> Any:
    return built(_without_textures(xml))


def state_of(seen: dict[str, Array]) -> Array:
    """Return LeRobot's 8 numbers of the hand from robosuite's observation."""
    quaternion = seen["robot0_eef_quat"]
    sine = np.sqrt(1 - quaternion[3] ** 2)
    angle = quaternion[:3] / sine * 2 * np.arccos(quaternion[3])
    parts = [seen["robot0_eef_pos"], angle, seen["robot0_gripper_qpos"]]
    return np.concatenate(parts).astype(np.float32)
