"""robosuite 1.5: robomimic's five tasks (``proctor_worker/worlds/robosuite``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.settings import setting


class Demonstrations(Enum):
    """robomimic's datasets, which have horizons of their own."""

    PH = "ph"
    """Proficient human: 400 steps, Transport and ToolHang 700."""
    MH = "mh"
    """Multi-human: 500 steps, Transport 1100; there is none of ToolHang."""


@dataclass
class RobosuiteConfig(BenchmarkConfig):
    """Flags of robosuite."""

    type: str = setting("robosuite", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "Lift",
        "tasks, comma-separated: Lift, PickPlaceCan, NutAssemblySquare, TwoArmTransport, ToolHang",
    )
    demonstrations: Demonstrations = setting(
        Demonstrations.PH, "robomimic dataset whose horizons are used"
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: robomimic's horizon of the task)"
    )
    lite_physics: bool = setting(
        True, "robosuite 1.5's shorter physics step; false: as in datasets of robosuite 1.4"
    )
    camera_name: str | None = setting(
        None, "cameras, comma-separated (default: robomimic's cameras of the task)"
    )
    observation_height: int = setting(84, "height of camera images in pixels")
    observation_width: int = setting(84, "width of camera images in pixels")


PLUGIN = isolated_plugin(
    "robosuite",
    RobosuiteConfig,
    "robosuite 1.5: the five tasks of robomimic (Panda arms)",
    groups=("robomimic",),
)
