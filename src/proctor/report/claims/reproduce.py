"""Commands that repeat an evaluation, one of its episodes, or a training. Pure functions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.fingerprint import flatten
from proctor.permissions import permission_flags

Settings = Mapping[str, Any]
_CHOOSES_EPISODES = ("env.task", "env.task_ids", "eval.episodes")


def run_command(given: Settings, resolved: Settings) -> str:
    """Return the command that repeats the whole run in a new folder."""
    return _command(_as_flags(given, resolved))


def train_command(given: Settings, resolved: Settings, verb: str = "train") -> str:
    """Return the command that repeats a training in a new folder."""
    return _command(_as_flags(given, resolved), verb)


def resume_command(folder: Path, given: Settings, resolved: Settings, verb: str = "eval") -> str:
    """Return the command that completes the run, recording or training in ``folder``."""
    verb = "record" if verb == "eval" and "dataset" in resolved else verb
    again = permission_flags(given, but=("output_dir",))
    return f"proctor {verb} --resume {_word('output_dir', str(folder))}{again}"


def episode_command_prefix(given: Settings, resolved: Settings) -> str:
    """Return the command of a single episode without the flags that choose the episode.

    The episode is only to be watched here, so the flags of the cluster and of W&B are left out.
    """
    flags = _as_flags(given, resolved)
    names = [name for name in flags if name not in (*_CHOOSES_EPISODES, "cluster")]
    return _command({name: flags[name] for name in names if not name.startswith("wandb.")})


def task_flags(suite: str, task_id: int) -> str:
    """Return the flags that choose a task of the run.

    They name suite and id, not the task's name: policies seed their noise by suite and id, and a
    single episode must draw the same noise as in the run.
    """
    return f"{_word('env.task', suite)} {_word('env.task_ids', task_id)}"


def episode_flag(index: int) -> str:
    """Return the flag that chooses one episode of a task by its index, which gives its seed."""
    return _word("eval.episodes", index)


def _as_flags(given: Settings, resolved: Settings) -> dict[str, Any]:
    """Flatten config sections to flags; any other dict is the value of a flag."""
    return flatten(given, lambda name, value: isinstance(resolved.get(name), Mapping))


def _command(flags: Settings, verb: str = "eval") -> str:
    return " ".join([f"proctor {verb}", *(_word(name, value) for name, value in flags.items())])


def _word(name: str, value: Any) -> str:
    return f"{shlex.quote(f'--{name}')}={shlex.quote(_text(value))}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return json.dumps(value, separators=(",", ":"))
