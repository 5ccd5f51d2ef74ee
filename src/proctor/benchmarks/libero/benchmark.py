"""LIBERO: 130 household tasks of a Panda arm in five suites, as LeRobot evaluates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.benchmarks.base import SEED_RULE, BenchmarkPlugin, ListedTasks, RobotControl, Sim
from proctor.benchmarks.libero.assets import find_assets, modified_files
from proctor.benchmarks.libero.download import download_assets
from proctor.benchmarks.libero.expert import LiberoExpert, has_skills
from proctor.benchmarks.libero.problem import Problem, read_problem
from proctor.benchmarks.libero.scene import COLUMNS, POSE_NUMBERS, ROWS
from proctor.benchmarks.libero.tasks import (
    ALL,
    STANDARD_SUITES,
    SUITES,
    bddl_file,
    instruction_of,
    read_init_states,
    task_names,
)
from proctor.benchmarks.libero.versions import check_versions, version_warnings
from proctor.benchmarks.mujoco.drawing_process import render_variables
from proctor.benchmarks.mujoco.render_config import ObservationType, RenderedConfig
from proctor.benchmarks.selection import (
    cameras_by_key,
    check_cameras,
    image_key,
    require_positive,
    split_names,
    tasks_of_suite,
)
from proctor.errors import UsageError, did_you_mean
from proctor.features import (
    ENVIRONMENT_STATE,
    STATE,
    ActionSpec,
    Array,
    Expert,
    Feature,
    FeatureKind,
)
from proctor.fingerprint import NAME_LIST, PRESENTATION
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.types import CLOSEST, SUBGOALS, EpisodeSpec, Score, Task

if TYPE_CHECKING:
    from proctor.benchmarks.libero.sim import LiberoSimSettings

FPS = 20
N_INIT_STATES = 50
CAMERAS = ("agentview", "robot0_eye_in_hand", "frontview", "birdview", "sideview", "galleryview")
_DEFAULT_NAMES = {"agentview": "image", "robot0_eye_in_hand": "image2"}


class Horizons(Enum):
    """Source of the maximum episode lengths."""

    LEROBOT = "lerobot"
    OPENPI = "openpi"


class ControlMode(Enum):
    """Meaning of actions: relative motions or absolute poses of the hand."""

    RELATIVE = "relative"
    ABSOLUTE = "absolute"
    EE6D = "ee6d"
    """Absolute poses of 20 numbers, in actions and state (``poses``), as X-VLA was trained."""


LEROBOT = {
    "fps": LerobotFlag((FPS,), f"LIBERO's robot is controlled {FPS} times a second"),
    "init_states": LerobotFlag(
        (True,),
        "episodes start from LIBERO's init states, as published numbers do; --eval.episodes "
        "chooses among them",
    ),
    "hard_reset": LerobotFlag(
        None, "every reset is soft, and equals a new environment's bit for bit"
    ),
    "is_libero_plus": LerobotFlag(
        (False,), "use --env.type=libero_plus for LIBERO-plus; these are LIBERO's own tasks"
    ),
}
"""LeRobot's flags that Proctor does not have."""
HORIZONS = {
    Horizons.LEROBOT: dict(zip(SUITES, (280, 280, 300, 520, 400), strict=True)),
    Horizons.OPENPI: dict(zip(SUITES, (220, 280, 300, 520, 400), strict=True)),
}


_MEANINGS = {
    ControlMode.RELATIVE: "a change of the hand's position and rotation vector, times 0.05 m and "
    "0.5 rad, gripper (-1 opens); in [-1, 1]",
    ControlMode.ABSOLUTE: "the hand's position and rotation vector, gripper (-1 opens)",
    ControlMode.EE6D: "the hand's position, two columns of its rotation, gripper (above 0.5 closes)"
    ", 10 numbers that mean nothing; the state is the same",
}

_CONTROL = RobotControl(
    action_noise=(*[0.1] * 6, 0.0),  # a gripper command opens or closes
    state_noise={STATE: 0.005},
    hold=(*[0.0] * 6, -1.0),
    hand_step_m=0.012,  # the controller lags behind its target of 0.05 m
)
"""Of relative actions; the expert's privileged state has no noise."""


@dataclass
class LiberoConfig(RenderedConfig):
    """Flags of LIBERO."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "protocol",
    }

    type: str = setting("libero", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "libero_10", f"suites, comma-separated: {', '.join(SUITES)}; {ALL}: the first 4"
    )
    obs_type: ObservationType | None = setting(
        ObservationType.PIXELS_AGENT_POS,
        "observations of the policy: images only, or images and robot state",
    )
    camera_name: str = setting(
        "agentview_image,robot0_eye_in_hand_image",
        f"cameras, comma-separated: {', '.join(CAMERAS)}",
        NAME_LIST,
    )
    camera_name_mapping: dict[str, str] | None = setting(
        None,
        "feature names of cameras, as {agentview_image: image} for observation.images.image "
        "(default: LeRobot's names)",
    )
    observation_height: int = setting(360, "height of camera images in pixels")
    observation_width: int = setting(360, "width of camera images in pixels")
    control_mode: ControlMode = setting(
        ControlMode.RELATIVE,
        "action space: relative or absolute end-effector poses, or X-VLA's 20-number poses (ee6d)",
    )
    protocol: Horizons = setting(
        Horizons.LEROBOT,
        "maximum steps per episode by suite, as in LeRobot or openpi (libero_spatial: 280 or 220)",
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: the suite's)"
    )
    assets: str | None = setting(
        None,
        "folder of LIBERO's meshes, textures and scenes (default: $PROCTOR_LIBERO_ASSETS, "
        "else the cache)",
        PRESENTATION,
    )


class Libero(ListedTasks):
    """The LIBERO benchmark; its variants override where tasks, their files and assets come from."""

    name = "libero"
    starts_of = "libero"  # LIBERO-Pro and LIBERO-plus vary its tasks
    distributions: tuple[str, ...] = ("hf-libero", "robosuite", "mujoco", "numpy")
    preload: tuple[str, ...] = ("proctor.benchmarks.libero.preload",)
    expert_inputs: tuple[str, ...] = (ENVIRONMENT_STATE,)
    scores: tuple[Score, ...] = (
        Score(SUBGOALS, "subgoals"),
        Score(CLOSEST, "closest approach (m)"),
    )
    editable_scenes = True
    places_scenes = True

    def __init__(self, config: LiberoConfig) -> None:
        if config.episode_length is not None:
            require_positive("episode_length", config.episode_length)
        self._config, self._render_settings = config, config.render_settings()
        self._absolute = config.control_mode is not ControlMode.RELATIVE
        self._ee6d = config.control_mode is ControlMode.EE6D
        size = POSE_NUMBERS if self._ee6d else 7
        self.action = ActionSpec(size) if self._absolute else ActionSpec(size, -1.0, 1.0)
        self.robot_control: RobotControl | None = None if self._absolute else _CONTROL
        self._camera_of = _camera_keys(config, self.name)
        self._tasks = self._select_tasks()
        self.warnings = version_warnings()

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``: its init state (of 50), and the run's seed plus the index.

        The seed places what the init state omits: cabinets, stoves and other fixtures, within a few
        centimetres. In tasks without fixtures, episodes with the same init state are the same.
        """
        return EpisodeSpec(task, index, seed + index, index % N_INIT_STATES)

    def features(self) -> dict[str, Feature]:
        """Return the cameras' images, the hand's state, and the privileged state."""
        shape = self._render_settings.shape
        offered = {key: Feature(FeatureKind.VISUAL, shape, "uint8") for key in self._camera_of}
        if self._config.state_is_offered:
            size = POSE_NUMBERS if self._ee6d else 8
            offered[STATE] = Feature(FeatureKind.STATE, (size,), "float32")
        offered[ENVIRONMENT_STATE] = Feature(FeatureKind.ENV, (ROWS, COLUMNS), "float64")
        return offered

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "horizons": {task.suite: task.max_steps for task in self._tasks},
            "seed_rule": SEED_RULE,
            "init_state_rule": f"episode index modulo {N_INIT_STATES}",
            "reset_rule": "a new environment's first reset, one init state, 10 settling steps",
            "termination": "success ends the episode; nothing else does before the horizon",
            "success": "LIBERO's goal predicates after any step",
            "action": _MEANINGS[self._config.control_mode],
            "control_mode": self._config.control_mode.value,
            "control_hz": FPS,
            "fps": FPS,
            "image_size": [self._config.observation_height, self._config.observation_width],
            "cameras": {
                key: f"{name}, {'upside down' if key in self._upside_down else 'mirrored'}"
                for key, name in self._camera_of.items()
            },
            "changed_assets": self._changed_assets,
        }

    @property
    def _upside_down(self) -> frozenset[str]:
        """Image keys that stay upside down: X-VLA was trained with only the first one rotated."""
        mirrored = {image_key("image")} if self._ee6d else self._camera_of
        return frozenset(key for key in self._camera_of if key not in mirrored)

    @cached_property
    def _changed_assets(self) -> dict[str, str]:
        return modified_files(self._config.assets, self._suites)

    def lacking(self) -> str | None:
        """Return what an evaluation would download, and the command for it; None: nothing."""
        check_versions()
        try:
            self._find_assets(self._suites)
        except FileNotFoundError as error:
            return (
                f"installed, but its assets are not in {error.args[0]}; "
                "run: python -m proctor.benchmarks.libero.download"
            )
        return None

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check LIBERO's packages, download its assets and, for images, check that GL works."""
        check_versions()
        is_rendered = any(key in self._camera_of for key in keys)
        variables = render_variables(self._render_settings, needed=is_rendered)
        try:
            self._find_assets(self._suites)
        except FileNotFoundError:
            download_assets(self._suites)
        return variables

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``; the first image opens its GL context."""
        from proctor.benchmarks.libero.settling_check import check_settling
        from proctor.benchmarks.libero.sim import LiberoSim

        sim = LiberoSim(self._sim_settings(task))
        check_settling(sim, task)
        return sim

    def expert(self, task: Task) -> Expert:
        """Return the scripted expert of ``task``."""
        if self._absolute:
            raise UsageError(
                f"{self.name}'s expert needs relative actions; use --env.control_mode=relative",
                code="env.no-expert",
            )
        if not has_skills(self._problem(task)):
            raise UsageError(
                f"{self.name}'s expert cannot do {task.suite} task {task.task_id} "
                f"({task.instruction}); {self._expert_hint(task)}",
                code="env.no-expert",
            )
        return LiberoExpert(self._problem(task))

    def _expert_hint(self, task: Task) -> str:
        """Return which tasks of the suite the expert can do."""
        names = enumerate(self._task_names(task.suite))
        others = (replace(task, task_id=task_id, name=name) for task_id, name in names)
        can = [str(other.task_id) for other in others if has_skills(self._problem(other))]
        flags = f"--env.task={task.suite} --env.task_ids=[{','.join(can)}]"
        return f"it can do {flags}" if can else "it can do no task of this suite"

    @cached_property
    def _suites(self) -> list[str]:
        return list(dict.fromkeys(task.suite for task in self._tasks))

    def _select_tasks(self) -> list[Task]:
        """Return the tasks that the config selects."""
        return select_tasks(self._config)

    def _task_names(self, suite: str) -> Sequence[str]:
        """Return the names of a suite's tasks, in the order of their ids."""
        return task_names()[suite]

    def _problem_file(self, task: Task) -> Path:
        """Return the task's BDDL file."""
        return bddl_file(task.suite, task.name)

    def _problem(self, task: Task) -> Problem:
        """Return the task's problem, as its expert needs it."""
        return _read_problem(self._problem_file(task))

    def _init_states(self, task: Task) -> Array:
        """Return the task's init states, float64 [states, 1 + nq + nv]."""
        return read_init_states(task.suite, task.name)

    def _find_assets(self, suites: Sequence[str]) -> Path:
        """Return the folder of the assets that ``suites`` need.

        Raises:
            FileNotFoundError: the cache lacks some; they can be downloaded.
        """
        return find_assets(self._config.assets, suites)

    def _sim_settings(self, task: Task) -> LiberoSimSettings:
        """Return the settings of the task's simulator."""
        from proctor.benchmarks.libero.sim import LiberoSimSettings

        return LiberoSimSettings(
            bddl_file=self._problem_file(task),
            assets=self._find_assets([task.suite]),
            init_states=self._init_states(task),
            camera_of=self._camera_of,
            render_settings=self._render_settings,
            absolute=self._absolute,
            ee6d=self._ee6d,
            upside_down=self._upside_down,
        )


@cache
def _read_problem(path: Path) -> Problem:
    """Read a task's BDDL file; cached, since every episode's expert needs it."""
    return read_problem(path)


def _camera_keys(config: LiberoConfig, benchmark: str) -> dict[str, str]:
    """Return feature key -> camera; ``agentview_image`` and ``agentview`` are the same camera."""
    cameras = [_bare(name) for name in split_names(config.camera_name, flag="camera_name")]
    renamed = {_bare(name): new for name, new in (config.camera_name_mapping or {}).items()}
    check_cameras(benchmark, cameras, CAMERAS, renamed)
    names = _DEFAULT_NAMES | renamed
    return cameras_by_key([image_key(names.get(camera, camera)) for camera in cameras], cameras)


def _bare(camera: str) -> str:
    return camera.removesuffix("_image")


def select_tasks(config: LiberoConfig) -> list[Task]:
    """Return LIBERO's tasks of all named suites, each suite once."""
    named = dict.fromkeys(
        suite
        for name in split_names(config.task, flag="task")
        for suite in (STANDARD_SUITES if name == ALL else (name,))
    )
    tasks: list[Task] = []
    for suite in named:
        if suite not in SUITES:
            choice = f" (choose {', '.join(SUITES)} or {ALL})"
            raise UsageError(
                f"libero has no suite {suite!r}{did_you_mean(suite, SUITES) or choice}",
                code="env.unknown-task",
            )
        rows = [(name, instruction_of(name)) for name in task_names()[suite]]
        horizon = config.episode_length or HORIZONS[config.protocol][suite]
        tasks += tasks_of_suite(suite, rows, config.task_ids, horizon, FPS)
    return tasks


PLUGIN = BenchmarkPlugin(
    config=LiberoConfig,
    make=Libero,
    lerobot_flags=LEROBOT,
    groups=(*SUITES, ALL),
    summary="LIBERO: household tasks of a Panda arm (spatial, object, goal, 10, 90)",
)
