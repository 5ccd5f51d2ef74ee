"""Every benchmark that wraps somebody else's environment, small enough to test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proctor.benchmarks.base import Benchmark
from proctor.config.builder import benchmark_config_from
from proctor.plugins import find_benchmark

HUB_FILE = str(Path(__file__).with_name("hub_environment.py"))
GYM = {"type": "gym", "id": "tests.sim.small_gym:proctor/Reach-v0"}
HUB = {"type": "hub", "path": HUB_FILE, "trust_remote_code": True}
PUSHT = {"type": "pusht", "episode_length": 20}
ALOHA = {
    "type": "aloha",
    "task": "aloha",
    "episode_length": 8,
    "observation_height": 48,
    "observation_width": 64,
    "shadow_map": 0,
}
ALL = {"pusht": PUSHT, "aloha": ALOHA, "gym": GYM, "hub": HUB}


def make(config: Any) -> Benchmark:
    """Make a benchmark from its config."""
    return find_benchmark(config.type).make(config)


def made(settings: dict[str, Any]) -> Benchmark:
    return make(benchmark_config_from(settings))
