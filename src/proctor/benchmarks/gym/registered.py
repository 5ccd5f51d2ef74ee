"""Registered gymnasium environments: ``--env.type=gym --env.id=package:Env-v0``."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.gym.benchmark import GymAdapter, GymAdapterConfig
from proctor.benchmarks.gym.elsewhere import IsolatedEnv, IsolatedGym, probe_elsewhere
from proctor.benchmarks.gym.probe import EnvFacts
from proctor.errors import MissingExtra, UsageError
from proctor.settings import setting
from proctor.system.platform.source_files import module_hashes
from proctor.system.user_code import add_current_folder_to_path
from proctor_worker.gym_env.opener import GymOpener


@dataclass
class GymConfig(GymAdapterConfig):
    """Flags of gymnasium environments."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "id",
    }

    type: str = setting("gym", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("", "task; only the environment's id (default: the environment's id)")
    id: str = setting("", "gymnasium id, as CartPole-v1 or package:Env-v0 (required)")


class Gym(GymAdapter):
    """Benchmark of one registered environment."""

    def __init__(self, config: GymConfig, facts: EnvFacts | None) -> None:
        self._package = config.id.rpartition(":")[0]
        if self._package:
            add_current_folder_to_path()
        super().__init__("gym", config, GymOpener(config.id, config.kwargs), facts)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode, and hashes of a package without a version."""
        return {**super().protocol(), "files": module_hashes(self._package)}


def make(config: GymConfig, found: EnvFacts | IsolatedEnv | None = None) -> GymAdapter:
    """Make the benchmark of one registered environment; without ``found`` probe it first."""
    if isinstance(found, IsolatedEnv):
        return IsolatedGym(config, GymOpener(config.id, config.kwargs), found)
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra("gymnasium", "gym")
    _require_id(config)
    return Gym(config, found)


def _require_id(config: GymConfig) -> None:
    if not config.id:
        raise UsageError(
            "--env.id is missing: the environment's id, as --env.id=CartPole-v1",
            code="flag.missing",
        )


def probe_once(config: GymConfig) -> EnvFacts | IsolatedEnv:
    """Probe the environment, here or in the config's interpreter; return its facts for workers."""
    if config.python is None and config.command is None:
        return make(config).facts
    _require_id(config)
    return probe_elsewhere(config, config.id)


PLUGIN = BenchmarkPlugin(
    config=GymConfig,
    make=make,
    summary="any registered gymnasium environment (--env.id)",
    probe=probe_once,
    starts_interpreter=True,
)
