"""CALVIN: the first instruction of each sequence (``proctor_worker/worlds/calvin``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.settings import setting


class CalvinRenderer(Enum):
    """Renderers of Bullet; their images differ."""

    EGL = "egl"
    """OpenGL, as upstream evaluates."""
    CPU = "cpu"
    """Bullet's software renderer, for machines without EGL."""


@dataclass
class CalvinConfig(BenchmarkConfig):
    """Flags of CALVIN."""

    type: str = setting("calvin", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("calvin_d", "tasks, comma-separated, or calvin_d: all 27")
    renderer: CalvinRenderer = setting(
        CalvinRenderer.EGL, "renderer of images; results are published with egl"
    )
    episode_length: int | None = setting(None, "maximum simulator steps per episode (default: 360)")


PLUGIN = isolated_plugin(
    "calvin",
    CalvinConfig,
    "CALVIN (environment D): first link of its chains",
    groups=("calvin_d",),
)
