"""CALVIN: the first instruction of each sequence (``proctor_worker/worlds/calvin``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.foreign.plugin import foreign_plugin


class CalvinRenderer(Enum):
    """Renderers of Bullet; their images differ."""

    EGL = "egl"
    """OpenGL, as upstream evaluates."""
    CPU = "cpu"
    """Bullet's software renderer, for machines without EGL."""


@dataclass
class CalvinConfig(BenchmarkConfig):
    """Flags of CALVIN."""

    type: str = field(
        default="calvin", metadata={"help": "benchmark: a built-in name or package.module:NAME"}
    )
    task: str = field(
        default="calvin_d",
        metadata={"help": "tasks, comma-separated, or calvin_d: all 27"},
    )
    renderer: CalvinRenderer = field(
        default=CalvinRenderer.EGL,
        metadata={"help": "renderer of images; results are published with egl"},
    )
    episode_length: int | None = field(
        default=None,
        metadata={"help": "maximum simulator steps per episode", "default_help": "360"},
    )


PLUGIN = foreign_plugin(
    "calvin",
    CalvinConfig,
    "CALVIN (environment D): first link of its chains",
    groups=("calvin_d",),
)
