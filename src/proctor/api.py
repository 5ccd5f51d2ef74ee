"""The Python API: ``evaluate`` does what ``proctor eval`` does."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from proctor import plugins
from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.builder import aliased_flags, build, own_flags
from proctor.config.evaluation import EvalConfig
from proctor.errors import ProctorNote, ProctorWarning, UsageError, did_you_mean
from proctor.evaluation.notices import Notices, end_notices, start_notices
from proctor.evaluation.run import Evaluation, prepare, run_evaluation
from proctor.fingerprint import to_json
from proctor.policies.callable_policy import CallableConfig, policy_name
from proctor.system.hub import HUB_ID
from proctor.system.streams import open_closed_streams

_SHORT = {"task": "env", "n_episodes": "eval", "batch_size": "eval"}
"""Settings with an argument of their own, and their sections."""


def evaluate(
    policy: Any = None,
    env: str | Mapping[str, Any] | BenchmarkConfig | None = None,
    *,
    task: str | Iterable[str] | None = None,
    n_episodes: int | None = None,
    batch_size: int | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a policy and return the run.

    ``policy`` is a name ("expert"), a checkpoint's folder or Hub id, settings ({"type": ...}), an
    object (a ``Policy``), a function of an observation, or a ``PolicyFunction``. Other settings are
    those of the command line, nested as in a config file::

        evaluate("expert", "metaworld", task=["reach-v3", "push-v3"], n_episodes=10, seed=7,
                 eval={"max_retries": 0}, output_dir="outputs/reach")

    Warnings and notes of the command line are issued as ``ProctorWarning`` and ``ProctorNote``,
    most of them before the first episode.

    Raises:
        ProctorError: in one line, with what to change.
    """
    open_closed_streams()
    _check_names(settings)
    given, handed = _policy_settings(policy)
    short = {"task": task, "n_episodes": n_episodes, "batch_size": batch_size}
    given |= _env_settings(env) | _plain(settings)
    for name, value in short.items():
        if value is not None:
            _put(given, _SHORT[name], name, _plain(value))
    config = build(EvalConfig, given)
    if handed is not None:
        assert isinstance(config.policy, CallableConfig)
        config = replace(config, policy=replace(config.policy, handed=handed))
    prepared = prepare(config)
    _warn_of(start_notices(prepared))
    evaluation = run_evaluation(prepared, given)
    _warn_of(end_notices(evaluation, prepared.benchmark.action))
    return evaluation


def _warn_of(notices: Notices) -> None:
    """Issue Python warnings to the caller of ``evaluate``."""
    for warning in notices.warnings:
        warnings.warn(warning, ProctorWarning, stacklevel=3)
    for note in notices.notes:
        warnings.warn(note, ProctorNote, stacklevel=3)


def _check_names(settings: Mapping[str, Any]) -> None:
    """Refuse an unknown argument, and a section that is not a mapping."""
    flags = {flag.name for flag in own_flags(EvalConfig)}
    sections = {name.partition(".")[0] for name in flags if "." in name}
    known = {name for name in flags if "." not in name} | sections
    for name, value in settings.items():
        if "." not in name and name not in known:
            _check_alias(name, known | {"policy", "env", *_SHORT})
        if name in sections and not isinstance(value, Mapping):
            raise UsageError(
                f"{name}={value!r}: expected settings, as {name}={{...}}", code="flag.invalid-value"
            )


def _check_alias(name: str, known: set[str]) -> None:
    aliases = {str(flag.alias) for flag in aliased_flags(EvalConfig)}
    if name not in aliases:
        near = did_you_mean(name, known | aliases)
        raise UsageError(f"evaluate() has no argument {name!r}{near}", code="flag.unknown")


def _policy_settings(policy: Any) -> tuple[dict[str, Any], Any]:
    """Return the settings that name a policy, and the policy object if one was passed."""
    if policy is None:
        return {}, None
    if isinstance(policy, Mapping):
        return {"policy": _plain(policy)}, None
    if isinstance(policy, str | Path):
        return {"policy": {_kind_of_name(policy): str(policy)}}, None
    return {"policy": {"type": CallableConfig.type, "name": policy_name(policy)}}, policy


def _kind_of_name(policy: str | Path) -> str:
    """Return "type" or "path": whether a text names a policy type or a checkpoint."""
    if isinstance(policy, Path):
        return "path"
    if policy in plugins.known_plugins("policies") or ":" in policy:
        return "type"
    is_path = policy.startswith(("~", ".", "/")) or HUB_ID.fullmatch(policy)
    return "path" if is_path or Path(policy).exists() else "type"


def _env_settings(env: str | Mapping[str, Any] | BenchmarkConfig | None) -> dict[str, Any]:
    if env is None:
        return {}
    if isinstance(env, BenchmarkConfig):
        return {"env": to_json(env)}
    return {"env": {"type": env} if isinstance(env, str) else _plain(env)}


def _put(settings: dict[str, Any], section: str, name: str, value: Any) -> None:
    """Set a setting that has its own argument; refuse it if its section has it too."""
    inside = dict(settings.get(section) or {})
    if name in inside or f"{section}.{name}" in settings:
        raise UsageError(
            f"{name}= and {section}[{name!r}] are both given; leave one out", code="flag.conflict"
        )
    settings[section] = inside | {name: value}


def _plain(value: Any) -> Any:
    """Convert numpy numbers, paths, tuples and enums to the types of a config file."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set) else value)]
    return value
