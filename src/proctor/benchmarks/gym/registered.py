"""Registered gymnasium environments: ``--env.type=gym --env.id=package:Env-v0``."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.gym.benchmark import GymAdapter, GymAdapterConfig
from proctor.benchmarks.gym.probe import EnvFacts, OpenedTask
from proctor.errors import MissingExtra, UsageError, did_you_mean
from proctor.system.source_files import module_hashes
from proctor.system.user_code import add_current_folder_to_path, import_user_module

_PACKAGES = {
    "gymnasium_robotics": (
        ("Fetch", "Hand", "AdroitHand", "PointMaze", "AntMaze", "FrankaKitchen"),
        "gymnasium-robotics",
    ),
    "minigrid": (("MiniGrid-", "BabyAI-"), "minigrid"),
    "shimmy": (("dm_control/", "bsuite/"), "'shimmy[dm-control]'"),
    "ale_py": (("ALE/",), "ale-py"),
    "gym_pusht": (("gym_pusht/", "PushT"), "gym-pusht"),
    "gym_aloha": (("gym_aloha/", "Aloha"), "gym-aloha"),
    "gym_xarm": (("gym_xarm/", "Xarm"), "gym-xarm"),
}
"""Packages that must be imported to register environments -> prefixes of ids, name for pip."""
_NO_TIME_LIMIT = -1
"""Disables gymnasium's own time limit: the engine has the horizon."""


@dataclass
class GymConfig(GymAdapterConfig):
    """Flags of gymnasium environments."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "id",
    }

    type: str = field(
        default="gym", metadata={"help": "benchmark: a built-in name or package.module:NAME"}
    )
    task: str = field(
        default="",
        metadata={
            "help": "task; only the environment's id",
            "default_help": "the environment's id",
        },
    )
    id: str = field(
        default="",
        metadata={
            "help": "gymnasium id, as CartPole-v1 or package:Env-v0",
            "default_help": "required",
        },
    )


@dataclass(frozen=True)
class GymOpener:
    """Opens a registered environment."""

    id: str
    kwargs: dict[str, Any]

    @property
    def description(self) -> str:
        """Name of the environment in messages."""
        return self.id

    @property
    def suite(self) -> str:
        """The id without the package that registers it."""
        return self.id.rpartition(":")[2]

    def tasks(self) -> list[OpenedTask]:
        """Open the only environment."""
        env = self.task(self.suite, 0)
        return [OpenedTask(self.suite, 0, env, horizon=self._registered().max_episode_steps)]

    def task(self, suite: str, task_id: int) -> Any:
        """Open the environment."""
        import gymnasium

        kwargs = dict(self.kwargs)
        if _supports_rgb_array(self._registered()):
            kwargs.setdefault("render_mode", "rgb_array")
        return gymnasium.make(
            self.suite, max_episode_steps=_NO_TIME_LIMIT, disable_env_checker=True, **kwargs
        )

    def _registered(self) -> Any:
        """Import the environment's package; return gymnasium's spec of the environment."""
        import gymnasium

        package = self.id.rpartition(":")[0]
        try:
            if package:
                import_user_module(package)
            return gymnasium.spec(self.suite)
        except ModuleNotFoundError as missing:
            if missing.name != package.partition(".")[0]:
                raise  # the package exists, but one of its own imports is missing
            raise UsageError(
                f"--env.id={self.id}: {missing}{_how_to_install(package)}", code="env.not-found"
            ) from None
        except gymnasium.error.Error:
            hint = _package_hint(self.suite) if not package else ""
            hint = hint or did_you_mean(self.suite, gymnasium.registry)
            if not hint and not package:
                hint = "; name the package that registers it: --env.id=package:ID"
            raise UsageError(
                f"--env.id={self.id}: {self.suite} is not registered{hint}", code="env.not-found"
            ) from None


def _package_hint(suite: str) -> str:
    """Return a hint at the known package that registers an id with this prefix."""
    for package, (beginnings, _) in _PACKAGES.items():
        if suite.startswith(beginnings):
            needs = f"; {package} registers it: --env.id={package}:{suite}"
            return needs + ("" if importlib.util.find_spec(package) else _how_to_install(package))
    return ""


def _how_to_install(package: str) -> str:
    return f" (run: pip install {_PACKAGES[package][1]})" if package in _PACKAGES else ""


def _supports_rgb_array(registered: Any) -> bool:
    """Whether the environment takes ``render_mode="rgb_array"``, by its class's metadata.

    A factory function has no metadata; it gets the argument if its signature accepts it.
    """
    from gymnasium.envs.registration import load_env_creator

    point = registered.entry_point
    creator = load_env_creator(point) if isinstance(point, str) else point
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, dict):
        return "rgb_array" in metadata.get("render_modes", ())
    parameters = inspect.signature(creator).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return metadata is None and ("render_mode" in parameters or takes_all)


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


def make(config: GymConfig, facts: EnvFacts | None = None) -> GymAdapter:
    """Make the benchmark of one registered environment; probe it first without ``facts``.

    Raises:
        UsageError: the environment is not registered, or cannot be used.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra("gymnasium", "gym")
    if not config.id:
        raise UsageError(
            "--env.id is missing: the environment's id, as --env.id=CartPole-v1",
            code="flag.missing",
        )
    return Gym(config, facts)


def probe_once(config: GymConfig) -> EnvFacts:
    """Probe the environment; return its facts for workers."""
    return make(config).facts


PLUGIN = BenchmarkPlugin(
    config=GymConfig,
    make=make,
    summary="any registered gymnasium environment (--env.id)",
    probe=probe_once,
)
