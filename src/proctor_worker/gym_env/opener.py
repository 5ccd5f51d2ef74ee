"""Opens registered environments of gymnasium, or of gym in interpreters that have no other."""

import difflib
import importlib
import importlib.util
import inspect
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from proctor_worker.boundary import as_flag, as_tuple
from proctor_worker.gym_env.inspection import OpenedTask
from proctor_worker.records import Refused

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
"""Disables gymnasium's own time limit: Proctor has the horizon."""


class GymOpener(NamedTuple):
    """Opens a registered environment."""

    id: str
    kwargs: Dict[str, Any]

    @property
    def description(self) -> str:
        """Name of the environment in messages."""
        return self.id

    @property
    def suite(self) -> str:
        """The id without the package that registers it."""
        return self.id.rpartition(":")[2]

    def tasks(self) -> List[OpenedTask]:
        """Open the only environment."""
        env = self.task(self.suite, 0)
        horizon = self._registered()[1].max_episode_steps
        return [OpenedTask(self.suite, 0, env, horizon)]

    def task(self, suite: str, task_id: int) -> Any:
        """Open the environment."""
        library, registered = self._registered()
        kwargs = dict(self.kwargs)
        old = _version(library) < (0, 26)
        if not old and _supports_rgb_array(registered):
            kwargs.setdefault("render_mode", "rgb_array")
        if library.__name__ == "gymnasium" and _version(library) >= (1, 0):
            return library.make(
                self.suite, max_episode_steps=_NO_TIME_LIMIT, disable_env_checker=True, **kwargs
            )
        if not old:
            kwargs["disable_env_checker"] = True
        env = library.make(self.suite, **kwargs)
        if type(env).__name__ == "TimeLimit":
            env = env.env
        return OldEnv(env) if old or not hasattr(env, "get_wrapper_attr") else env

    def _registered(self) -> Tuple[Any, Any]:
        """Import the environment's package; return the library and its spec of the environment."""
        package = self.id.rpartition(":")[0]
        try:
            if package:
                importlib.import_module(package)
        except ModuleNotFoundError as missing:
            if missing.name != package.partition(".")[0]:
                raise  # the package exists, but one of its own imports is missing
            raise Refused(
                f"--env.id={self.id}: {missing}{_how_to_install(package)}", code="env.not-found"
            ) from None
        libraries = [
            importlib.import_module(name)
            for name in ("gymnasium", "gym")
            if importlib.util.find_spec(name) is not None
        ]
        if not libraries:
            raise Refused("neither gymnasium nor gym is installed", code="env.not-found")
        for library in libraries:
            try:
                return library, library.spec(self.suite)
            except library.error.Error:
                continue
        known = getattr(libraries[0], "registry", None) or libraries[0].envs.registry.env_specs
        hint = _package_hint(self.suite) if not package else ""
        hint = hint or _did_you_mean(self.suite, list(known))
        if not hint and not package:
            hint = "; name the package that registers it: --env.id=package:ID"
        raise Refused(
            f"--env.id={self.id}: {self.suite} is not registered{hint}", code="env.not-found"
        )


_OLD_STEP = "step: observation, reward, done, info"


class OldEnv:
    """An environment of gym (0.21 to 0.26) with gymnasium's methods."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata: Dict[str, Any] = dict(env.metadata or {})
        modes = self.metadata.get("render_modes") or self.metadata.get("render.modes") or ()
        mode: Optional[str] = getattr(env, "render_mode", None)
        self._by_argument = mode is None and "rgb_array" in modes
        self.render_mode = "rgb_array" if self._by_argument else mode

    @property
    def unwrapped(self) -> Any:
        """The environment itself."""
        return self._env.unwrapped

    def reset(self, seed: Optional[int] = None) -> Tuple[Any, Dict[str, Any]]:
        """Reset with a seed."""
        if "seed" in inspect.signature(self._env.unwrapped.reset).parameters:
            made = self._env.reset(seed=seed)
        else:
            self._env.seed(seed)
            made = self._env.reset()
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict):
            return made
        return made, {}

    def step(self, action: Any) -> Tuple[Any, float, bool, bool, Dict[str, Any]]:
        """Take one step; a step of four values says in info whether a time limit ended it."""
        made = self._env.step(action)
        if isinstance(made, tuple) and len(made) == 5:
            return made
        observation, reward, done, info = as_tuple(made, _OLD_STEP)
        truncated = as_flag(info.get("TimeLimit.truncated", False), "info.TimeLimit.truncated")
        return observation, reward, as_flag(done, "done") and not truncated, truncated, info

    def render(self) -> Any:
        """Return the rendered image."""
        return self._env.render(mode="rgb_array") if self._by_argument else self._env.render()

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment or of one inside its wrappers."""
        return getattr(self._env, name)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _version(library: Any) -> Tuple[int, int]:
    """Return major and minor version."""
    major, minor = str(library.__version__).split(".")[:2]
    return int(major), int("".join(char for char in minor if char.isdigit()) or 0)


def _package_hint(suite: str) -> str:
    """Return a hint at the known package that registers an id with this prefix."""
    for package, (beginnings, _) in _PACKAGES.items():
        if suite.startswith(beginnings):
            needs = f"; {package} registers it: --env.id={package}:{suite}"
            return needs + ("" if importlib.util.find_spec(package) else _how_to_install(package))
    return ""


def _how_to_install(package: str) -> str:
    return f" (run: pip install {_PACKAGES[package][1]})" if package in _PACKAGES else ""


def _did_you_mean(word: str, known: List[str]) -> str:
    near = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _supports_rgb_array(registered: Any) -> bool:
    """Whether the environment takes ``render_mode="rgb_array"``, by its class's metadata.

    A factory function has no metadata; it gets the argument if its signature accepts it.
    """
    point = registered.entry_point
    creator = point
    if isinstance(point, str):
        module, _, attribute = point.partition(":")
        creator = importlib.import_module(module)
        for name in attribute.split("."):
            creator = getattr(creator, name)
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, dict):
        return "rgb_array" in metadata.get("render_modes", ())
    parameters = inspect.signature(creator).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return metadata is None and ("render_mode" in parameters or takes_all)
