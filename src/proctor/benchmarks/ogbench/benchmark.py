"""OGBench manipulation: goal-conditioned tasks of a UR5e (``proctor_worker/worlds/ogbench``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.settings import setting

SUITES = (
    *("cube-single", "cube-double", "cube-triple", "cube-quadruple", "cube-octuple", "scene"),
    *("puzzle-3x3", "puzzle-4x4", "puzzle-4x5", "puzzle-4x6"),
)


class ObsType(Enum):
    """Observations that policies get."""

    STATE = "state"
    """OGBench's state and the goal's state."""
    PIXELS = "pixels"
    """An image and the goal's image, 64x64: OGBench's visual-* environments."""


class SuccessTiming(Enum):
    """Which state of a step decides success, reward and end."""

    POST = "post"
    """The state after the action: OGBench 1.2."""
    PRE = "pre"
    """The state before the action: OGBench before 1.2."""


@dataclass
class OgbenchConfig(BenchmarkConfig):
    """Flags of OGBench."""

    type: str = setting("ogbench", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("cube-single", f"suites ({', '.join(SUITES)}) or tasks such as scene-task3")
    obs_type: ObsType = setting(
        ObsType.STATE, "observations of the policy: states, or images of 64x64"
    )
    success_timing: SuccessTiming = setting(
        SuccessTiming.POST,
        "state that decides success: after the action, or before (OGBench < 1.2)",
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: OGBench's horizon of the suite)"
    )


PLUGIN = isolated_plugin(
    "ogbench",
    OgbenchConfig,
    "OGBench manipulation: cubes, a scene and button puzzles, with scripted experts",
    groups=SUITES,
)
