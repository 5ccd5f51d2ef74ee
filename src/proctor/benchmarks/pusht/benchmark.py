"""PushT: push a T-shaped block onto its target with a round finger, as LeRobot evaluates it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from proctor.benchmarks.base import BenchmarkConfig, BenchmarkPlugin, ListedTasks, RobotControl, Sim
from proctor.benchmarks.pusht import COVERAGE
from proctor.benchmarks.selection import ids_in_group, require_positive, split_names
from proctor.errors import MissingExtra, UsageError
from proctor.features import (
    ENVIRONMENT_STATE,
    FILM,
    IMAGE,
    STATE,
    ActionSpec,
    Expert,
    Feature,
    FeatureKind,
)
from proctor.fingerprint import PRESENTATION
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.types import MAX_REWARD, Score, Task

FPS = 10
LEROBOT = {"fps": LerobotFlag((FPS,), f"PushT is controlled {FPS} times a second; see --video.fps")}
"""LeRobot's flags that Proctor does not have."""

_SUITE, _TASK = "pusht", "PushT-v0"
_INSTRUCTION = "Push the T-shaped block onto the T-shaped target."


class ObsType(Enum):
    """Observations that policies get, by gym-pusht's names."""

    PIXELS_AGENT_POS = "pixels_agent_pos"
    ENVIRONMENT_STATE_AGENT_POS = "environment_state_agent_pos"
    PIXELS = "pixels"


_NOT_OFFERED = {
    ObsType.ENVIRONMENT_STATE_AGENT_POS: (IMAGE,),
    ObsType.PIXELS: (STATE, ENVIRONMENT_STATE),
}


@dataclass
class PushTConfig(BenchmarkConfig):
    """Flags of PushT."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Videos": "visualization_height visualization_width",
    }

    type: str = setting("pusht", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(_TASK, "task; only PushT-v0")
    obs_type: ObsType = setting(
        ObsType.PIXELS_AGENT_POS,
        "observations of the policy: image and finger position, block corners and finger "
        "position, or image only",
    )
    observation_height: int = setting(96, "height of camera images in pixels")
    observation_width: int = setting(96, "width of camera images in pixels")
    visualization_height: int = setting(384, "height of videos in pixels", PRESENTATION)
    visualization_width: int = setting(384, "width of videos in pixels", PRESENTATION)
    episode_length: int = setting(300, "maximum simulator steps per episode")


class PushT(ListedTasks):
    """The PushT benchmark."""

    name = "pusht"
    action = ActionSpec(2, 0.0, 512.0, clipped=False)
    distributions: tuple[str, ...] = (
        "gym-pusht",
        "pymunk",
        "shapely",
        "pygame",
        "opencv-python",
        "gymnasium",
        "numpy",
    )
    preload: tuple[str, ...] = ("proctor.benchmarks.pusht.sim",)
    expert_inputs: tuple[str, ...] = ()
    scores: tuple[Score, ...] = (Score(MAX_REWARD, "max reward"), Score(COVERAGE, "max coverage"))
    robot_control: RobotControl | None = RobotControl(
        action_noise=5.0, state_noise={STATE: 2.0, ENVIRONMENT_STATE: 2.0}
    )

    def __init__(self, config: PushTConfig) -> None:
        for name in (
            "observation_height",
            "observation_width",
            "visualization_height",
            "visualization_width",
            "episode_length",
        ):
            require_positive(name, getattr(config, name))
        for name in split_names(config.task, flag="task"):
            if name.removeprefix("gym_pusht/") not in (_SUITE, _TASK):
                raise UsageError(
                    f"pusht has no task {name!r} (choose {_TASK})", code="env.unknown-task"
                )
        ids_in_group(_SUITE, 1, config.task_ids)
        self._config = config
        self._tasks = [Task(_SUITE, 0, _TASK, _INSTRUCTION, config.episode_length, FPS)]

    def features(self) -> dict[str, Feature]:
        """Return the image, the finger's position, the block's corners, and the video image."""
        config = self._config
        observed = (config.observation_height, config.observation_width, 3)
        video = (config.visualization_height, config.visualization_width, 3)
        features = {
            IMAGE: Feature(FeatureKind.VISUAL, observed, "uint8"),
            STATE: Feature(FeatureKind.STATE, (2,), "float32"),
            ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (16,), "float32"),
            FILM: Feature(FeatureKind.FILM, video, "uint8"),
        }
        hidden = _NOT_OFFERED.get(config.obs_type, ())
        return {key: feature for key, feature in features.items() if key not in hidden}

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "horizon": self._config.episode_length,
            "seed_rule": "run seed + episode index",
            "reset_rule": "a new physics space; places and angle drawn from the episode's seed",
            "termination": "success ends the episode; nothing else does before the horizon",
            "success": "more than 95% of the target is covered",
            "reward": "covered part of the target / 0.95, at most 1",
            "action": "the finger's target x, y in [0, 512], not clipped",
            "fps": FPS,
            "image_size": [self._config.observation_height, self._config.observation_width],
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that gym-pusht is installed and OpenCV loads; rendering needs no GL context."""
        if any(importlib.util.find_spec(module) is None for module in ("gym_pusht", "pymunk")):
            raise MissingExtra("gym-pusht", "pusht")
        try:
            importlib.import_module("cv2")  # needs system libraries that pip does not install
        except ImportError as error:
            raise UsageError(
                f"OpenCV, which PushT needs, does not load ({error}); "
                "run: apt-get install libgl1 libglib2.0-0",
                code="env.broken-install",
            ) from None
        return {}

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator."""
        from proctor.benchmarks.pusht.sim import PushTSim

        config = self._config
        return PushTSim(
            observation_size=(config.observation_height, config.observation_width),
            video_size=(config.visualization_height, config.visualization_width),
        )

    def expert(self, task: Task) -> Expert:
        """Refuse: PushT has no expert."""
        raise UsageError(
            "pusht has no scripted policy; choose another --policy.type", code="env.no-expert"
        )


PLUGIN = BenchmarkPlugin(
    config=PushTConfig,
    make=PushT,
    summary="PushT: push a T-shaped block onto its target",
    lerobot_flags=LEROBOT,
)
