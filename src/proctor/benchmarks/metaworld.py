"""Meta-World (v3): 50 tabletop tasks of a Sawyer arm, as LeRobot evaluates them."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proctor.benchmarks.base import BenchmarkConfig, BenchmarkPlugin, Expert, Sim
from proctor.benchmarks.metaworld_tasks import SPLITS, TASKS
from proctor.benchmarks.rendering import CameraRenderer, gl_variables
from proctor.errors import MissingExtra, UsageError, did_you_mean
from proctor.types import (
    ActionSpec,
    Array,
    EpisodeSpec,
    Feature,
    FeatureKind,
    Observation,
    Step,
    Task,
)

FPS = 80
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")

# LeRobot moves this one camera closer; every public Meta-World checkpoint was trained on that view.
MOVED_CAMERAS = {"corner2": (0.75, 0.075, 0.7)}
# These hang upside down in the XML, so their pictures are turned by 180 degrees. (LeRobot turns
# corner2 only; the others come out of it with the arm standing on the ceiling.)
TURNED_CAMERAS = frozenset({"corner", "corner2", "corner3", "corner4"})

_ROWS = {row.name: row for row in TASKS}
_GROUPS = {"mt50": tuple(_ROWS), **SPLITS}


@dataclass
class MetaworldConfig(BenchmarkConfig):
    """Flags of Meta-World."""

    type: str = field(default="metaworld", metadata={"help": "which benchmark"})
    task: str = field(
        default="mt50",
        metadata={"help": "tasks, splits (easy, medium, hard, very_hard) or mt50, comma-separated"},
    )
    observation_height: int = field(default=480, metadata={"help": "image height in pixels"})
    observation_width: int = field(default=480, metadata={"help": "image width in pixels"})
    camera_name: str = field(
        default="corner2", metadata={"help": f"cameras, comma-separated, of {', '.join(CAMERAS)}"}
    )
    camera_name_mapping: dict[str, str] | None = field(
        default=None,
        metadata={"help": "camera to feature name, as {corner2: top} for observation.images.top"},
    )
    episode_length: int = field(default=500, metadata={"help": "most steps of an episode"})


class Metaworld:
    """The Meta-World benchmark."""

    name = "metaworld"
    action = ActionSpec(4, -1.0, 1.0)
    distributions: tuple[str, ...] = ("metaworld", "mujoco", "gymnasium", "numpy")
    preload: tuple[str, ...] = ("mujoco", "metaworld", "metaworld.policies")
    expert_inputs: tuple[str, ...] = (ENVIRONMENT_STATE,)

    def __init__(self, config: MetaworldConfig) -> None:
        _require_positive("observation_height", config.observation_height)
        _require_positive("observation_width", config.observation_width)
        _require_positive("episode_length", config.episode_length)
        self._config = config
        self._camera_of = _camera_keys(config)
        self._tasks = _selected_tasks(config)

    def tasks(self) -> list[Task]:
        """List the configured tasks, group by group."""
        return list(self._tasks)

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``: its seed is the run's seed plus the index."""
        return EpisodeSpec(task=task, index=index, seed=seed + index)

    def features(self) -> dict[str, Feature]:
        """Return the cameras' images, the 4 numbers of the hand, and all 39 of the world."""
        size = (self._config.observation_height, self._config.observation_width, 3)
        images = {key: Feature(FeatureKind.VISUAL, size, "uint8") for key in self._camera_of}
        return {
            **images,
            STATE: Feature(FeatureKind.STATE, (4,), "float32"),
            ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (39,), "float64"),
        }

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "horizon": self._config.episode_length,
            "seed_rule": "run seed + episode index, the same for every task",
            "reset_rule": "a fresh simulator's state; positions drawn from the episode's seed",
            "termination": "success ends the episode; nothing else does before the horizon",
            "success": "Meta-World's info['success'] at any step",
            "action": "hand dx, dy, dz and gripper effort, each clipped to [-1, 1]",
            "goal_in_environment_state": True,
            "fps": FPS,
            "image_size": [self._config.observation_height, self._config.observation_width],
            "cameras": {key: _camera_protocol(name) for key, name in self._camera_of.items()},
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that Meta-World is installed and, where ``keys`` holds images, that GL works."""
        if any(importlib.util.find_spec(module) is None for module in ("metaworld", "mujoco")):
            raise MissingExtra("Meta-World", "metaworld")
        return gl_variables(needed=any(key in self._camera_of for key in keys))

    def make_sim(self, task: Task) -> Sim:
        """Build the simulator of ``task``. No GL context is opened before the first image."""
        return _MetaworldSim(task, self._config, self._camera_of)

    def expert(self, task: Task) -> Expert:
        """Return Meta-World's scripted policy for ``task``."""
        from metaworld import policies

        policy = getattr(policies, _ROWS[task.name].policy)()
        return lambda observation: np.asarray(policy.get_action(observation[ENVIRONMENT_STATE]))


class _MetaworldSim:
    """One Meta-World environment whose resets forget everything that came before."""

    def __init__(self, task: Task, config: MetaworldConfig, camera_of: dict[str, str]) -> None:
        self._env = _make_env(task)
        self._config = config
        self._camera_of = camera_of
        self._pristine = _Pristine(self._env)
        self._renderer: CameraRenderer | None = None
        # Kept because asking the environment again would change it (its frame stacking).
        self._numbers = np.zeros(39)

    def reset(self, spec: EpisodeSpec) -> None:
        """Put the world where a fresh environment seeded with the spec's seed would be."""
        self._pristine.restore()
        self._env.seed(spec.seed)
        self._numbers, _ = self._env.reset()

    def step(self, action: Array) -> Step:
        """Advance the world by one action (Meta-World clips it)."""
        # float32 as the action space says: a double would move the hand by other last bits.
        self._numbers, reward, _, _, info = self._env.step(np.asarray(action, dtype=np.float32))
        success = bool(info["success"])
        return Step(reward=float(reward), success=success, terminated=success)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return MuJoCo's qpos."""
        return np.array(self._env.data.qpos, dtype=np.float64)

    def close(self) -> None:
        """Free the renderer and the environment."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()

    def _observe(self, key: str) -> Array:
        if key in self._camera_of:
            return self._render(self._camera_of[key])
        if key == STATE:
            return self._numbers[:4].astype(np.float32)
        if key == ENVIRONMENT_STATE:
            return self._numbers.copy()
        raise KeyError(key)

    def _render(self, camera: str) -> Array:
        if self._renderer is None:
            self._renderer = CameraRenderer(
                self._env.model, self._config.observation_height, self._config.observation_width
            )
        pixels = self._renderer.render(self._env.data, camera)
        return np.ascontiguousarray(pixels[::-1, ::-1]) if camera in TURNED_CAMERAS else pixels


class _Pristine:
    """A new environment as it was before its first reset, to go back to before every other one.

    Meta-World's ``reset`` starts from whatever the last episode left: it reads object heights from
    the old physics state, moves bodies and sites of the model, and keeps per-task attributes.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._fields = [(values, values.copy()) for values in _changeable_fields(env.model)]
        self._attributes = {name: _own_copy(value) for name, value in vars(env).items()}

    def restore(self) -> None:
        """Give the environment its first state back: model, physics and Python attributes."""
        import mujoco

        env = self._env
        for values, pristine in self._fields:
            np.copyto(values, pristine)
        # In place, as the constructor did: some attributes are views into this very MjData.
        mujoco.mj_resetData(env.model, env.data)
        mujoco.mj_forward(env.model, env.data)
        attributes = vars(env)
        attributes.clear()
        attributes.update((name, _own_copy(value)) for name, value in self._attributes.items())


def _changeable_fields(model: Any) -> list[Array]:
    """Return the model's arrays (as live views), without the bulk that comes from asset files."""
    bulk = ("_", "bvh_", "mesh_", "names", "tex_")
    values = [getattr(model, name) for name in dir(model) if not name.startswith(bulk)]
    return [value for value in values if isinstance(value, np.ndarray) and value.size]


def _own_copy(value: Any) -> Any:
    """Return a copy of a container of numbers; anything else, and views into MuJoCo, as it is."""
    if isinstance(value, np.ndarray) and value.base is None:
        return value.copy()
    if isinstance(value, dict):
        return {name: _own_copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_own_copy(item) for item in value]
    return value


def _make_env(task: Task) -> Any:
    """Build the task's environment as MT1 would, less the 50 resets MT1 draws its goals with."""
    from metaworld import Task as MetaworldTask
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    original = ALL_V3_ENVIRONMENTS[task.name]
    env = type(original.__name__, (original,), {"touching_object": _touching_object})()
    # The frozen goal is never used (unfrozen below); partially_observable hides the goal.
    goal = {"env_cls": original, "rand_vec": None, "partially_observable": False}
    env.set_task(MetaworldTask(env_name=task.name, data=pickle.dumps(goal)))
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    # Meta-World refuses to step past this; the horizon is the caller's.
    env.max_path_length = max(env.max_path_length, task.max_steps)
    for camera, position in MOVED_CAMERAS.items():
        env.model.camera(camera).pos[:] = position
    return env


def _touching_object(env: Any, object_geom_id: int) -> bool:
    """Return whether both finger pads press on the object, as ``SawyerXYZEnv.touching_object``.

    Meta-World walks through all contacts in Python, twice, which is a third of a step's time.
    """
    contact, forces = env.data.contact, env.data.efc_force
    on_object = (contact.geom == object_geom_id).any(axis=1)
    for pad in ("leftpad_geom", "rightpad_geom"):
        on_pad = (contact.geom == env.data.geom(pad).id).any(axis=1)
        # The built-in sum adds in Meta-World's order, so the last bits agree too.
        if not sum(forces[contact.efc_address[on_object & on_pad]]) > 0:
            return False
    return True


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"--env.{name} must be at least 1, not {value}")


def _camera_keys(config: MetaworldConfig) -> dict[str, str]:
    """Return feature key -> camera, in the configured order."""
    cameras = _items(config.camera_name, flag="camera_name")
    for camera in cameras:
        if camera not in CAMERAS:
            raise UsageError(f"metaworld has no camera {camera!r} (choose {', '.join(CAMERAS)})")
    renamed = config.camera_name_mapping or {}
    for camera in renamed:
        if camera not in cameras:
            raise UsageError(
                f"--env.camera_name_mapping names {camera!r}, "
                f"which is not in --env.camera_name ({', '.join(cameras)})"
            )
    keys = [_image_key(camera, renamed.get(camera), alone=len(cameras) == 1) for camera in cameras]
    if len(set(keys)) < len(keys):
        raise UsageError(f"two cameras would share a feature: {', '.join(keys)}")
    return dict(zip(keys, cameras, strict=True))


def _image_key(camera: str, renamed: str | None, *, alone: bool) -> str:
    if renamed is not None:
        prefix = "" if renamed.startswith("observation.") else "observation.images."
        return prefix + renamed
    return "observation.image" if alone else f"observation.images.{camera}"


def _camera_protocol(camera: str) -> dict[str, Any]:
    return {
        "camera": camera,
        "position": list(MOVED_CAMERAS[camera]) if camera in MOVED_CAMERAS else "as in the XML",
        "flip": "both axes" if camera in TURNED_CAMERAS else "none",
    }


def _selected_tasks(config: MetaworldConfig) -> list[Task]:
    """Return the tasks of all groups, each task once, where it is named first."""
    chosen: dict[str, Task] = {}
    for item in _items(config.task, flag="task"):
        suite, names = _group(item)
        for task_id in _ids_in_group(suite, len(names), config.task_ids):
            row = _ROWS[names[task_id]]
            task = Task(suite, task_id, row.name, row.instruction, config.episode_length, FPS)
            chosen.setdefault(row.name, task)
    return list(chosen.values())


def _items(text: str, *, flag: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise UsageError(f"--env.{flag} has an empty name in {text!r}")
    return items


def _group(item: str) -> tuple[str, tuple[str, ...]]:
    """Return the suite that ``item`` names and its tasks, in the order of their ids."""
    name = item.removeprefix("metaworld-")
    if name in _GROUPS:
        return name, _GROUPS[name]
    for full_name in (name, f"{name}-v3"):
        if full_name in _ROWS:
            return full_name, (full_name,)
    short_names = [known.removesuffix("-v3") for known in _ROWS]
    near = did_you_mean(name, [*_ROWS, *short_names, *_GROUPS])
    hint = near or f" (choose {', '.join(_GROUPS)} or a task such as reach-v3)"
    raise UsageError(f"metaworld has no task {item!r}{hint}")


def _ids_in_group(suite: str, count: int, wanted: list[int] | None) -> list[int]:
    if wanted is None:
        return list(range(count))
    if not wanted:
        raise UsageError("--env.task_ids is empty; leave it out to run every task")
    for task_id in wanted:
        if not 0 <= task_id < count:
            choice = "0" if count == 1 else f"0-{count - 1}"
            raise UsageError(f"{suite} has no task {task_id} (choose {choice})")
    return sorted(set(wanted))


PLUGIN = BenchmarkPlugin(
    config=MetaworldConfig,
    make=Metaworld,
    summary="Meta-World v3: 50 tabletop tasks of a Sawyer arm",
)
