"""What an environment is like, found out in a process of its own (``looking``).

Spaces are known only once an environment is made, and a picture's size once it is rendered; the
parent does neither, since simulators and GL live in other processes.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from proctor.benchmarks.gym.carryover import Carryover
from proctor.benchmarks.gym.success import SuccessRule
from proctor.errors import UsageError, summarize_traceback
from proctor.features import ActionSpec, Feature

_LIMIT_S = 300
_CHILD = "proctor.benchmarks.gym.env_inspection"


@dataclass(frozen=True)
class OpenedTask:
    """One live environment and what it calls itself."""

    suite: str
    task_id: int
    env: Any
    horizon: int | None
    """How many steps the environment was made for, where it says."""
    instruction: str | None = None


class Opener(Protocol):
    """How environments are made; picklable, so that any process can do it."""

    @property
    def description(self) -> str:
        """What is opened, in the user's words."""

    def tasks(self) -> list[OpenedTask]:
        """Open the environments of all tasks."""

    def task(self, suite: str, task_id: int) -> Any:
        """Open the environment of one task."""


@dataclass(frozen=True)
class TaskFacts:
    """What an environment says of its task; None where it says nothing."""

    suite: str
    task_id: int
    instruction: str | None
    horizon: int | None
    fps: int


@dataclass(frozen=True)
class EnvFacts:
    """What a benchmark has to know of its environments before one is opened to play."""

    tasks: tuple[TaskFacts, ...]
    features: dict[str, Feature]
    action: ActionSpec
    distributions: tuple[str, ...]
    carryover: Carryover = Carryover.NONE
    """The worst of what its environments keep of earlier episodes."""
    variables: dict[str, str] = field(default_factory=dict)
    """What has to be set before its modules are imported: MUJOCO_GL, where it uses MuJoCo."""
    notes: tuple[str, ...] = ()
    """Lines the user should see once."""


@dataclass(frozen=True)
class ProbeRefusal:
    """Why there are no facts, in one line."""

    text: str


@dataclass(frozen=True)
class ProbeRequest:
    """What is asked of the other process."""

    opener: Opener
    rule: SuccessRule
    episode_length: int | None


def probe_env(request: ProbeRequest) -> EnvFacts:
    """Open the environments in another process, look at them, play until success is judged.

    Raises:
        UsageError: they cannot be opened or played, or info lacks the key that tells success.
    """
    what = request.opener.description
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "question"), Path(folder, "answer")
        asked.write_bytes(pickle.dumps(request))
        command = [sys.executable, "-m", _CHILD, str(asked), str(answer)]
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            done = subprocess.run(  # noqa: S603  our own words
                command,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                env={**os.environ, "PYTHONPATH": paths},
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{what} did not open and play within {_LIMIT_S} s") from None
        if done.returncode == 0:
            found: EnvFacts | ProbeRefusal = pickle.loads(answer.read_bytes())  # noqa: S301  our own
            if isinstance(found, ProbeRefusal):
                raise UsageError(found.text)
            return found
    raise UsageError(f"{what} cannot be opened: {_cause_of_death(done.returncode, done.stderr)}")


def _cause_of_death(code: int, stderr: str) -> str:
    """Say how a process ended that could not say so itself."""
    how = f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    said = f" ({summarize_traceback(stderr)})" if stderr.strip() else ""
    return f"its process {how}{said}"
