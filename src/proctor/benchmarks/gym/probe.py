"""Probing of gymnasium environments in a separate process (``env_inspection``).

Spaces are known only after an environment is made, and the image size only after it is rendered.
The parent process does neither: simulators and GL run in other processes.
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

from proctor.benchmarks.gym.success import SuccessRule
from proctor.errors import UsageError, summarize_traceback
from proctor.features import ActionSpec, Feature, FeatureKind
from proctor_worker.gym_env.carryover import Carryover
from proctor_worker.gym_env.inspection import EnvRecord, OpenedTask, TaskRecord

_LIMIT_S = 300
_CHILD = "proctor.benchmarks.gym.env_inspection"


class Opener(Protocol):
    """Opens environments; picklable, so any process can do it."""

    @property
    def description(self) -> str:
        """Name of the environments in messages."""

    def tasks(self) -> list[OpenedTask]:
        """Open the environments of all tasks."""

    def task(self, suite: str, task_id: int) -> Any:
        """Open the environment of one task."""


@dataclass(frozen=True)
class EnvFacts:
    """Facts of all environments of a benchmark, found by the probe."""

    tasks: tuple[TaskRecord, ...]
    features: dict[str, Feature]
    action: ActionSpec
    distributions: tuple[str, ...]
    carryover: Carryover = Carryover.NONE
    """The worst carryover of all environments."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables to set before its modules are imported: MUJOCO_GL, if it uses MuJoCo."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""


def env_facts(found: EnvRecord, variables: dict[str, str]) -> EnvFacts:
    """Return the facts of an inspection, with Proctor's own records."""
    return EnvFacts(
        tasks=found.tasks,
        features={
            key: Feature(FeatureKind(part["kind"]), tuple(part["shape"]), part["dtype"])
            for key, part in found.features.items()
        },
        action=ActionSpec(found.action["size"], found.action["low"], found.action["high"]),
        distributions=found.distributions,
        carryover=found.carryover,
        variables=variables,
        notes=found.notes,
    )


@dataclass(frozen=True)
class ProbeRefusal:
    """Reason why the environments cannot be used: text and code of the error."""

    text: str
    code: str


@dataclass(frozen=True)
class ProbeRequest:
    """Input of the probe process."""

    opener: Opener
    rule: SuccessRule
    episode_length: int | None


def probe_env(request: ProbeRequest) -> EnvFacts:
    """Open and inspect the environments in another process; return their facts."""
    what = request.opener.description
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "question"), Path(folder, "answer")
        asked.write_bytes(pickle.dumps(request))
        command = [sys.executable, "-m", _CHILD, str(asked), str(answer)]
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            done = subprocess.run(  # noqa: S603  our own arguments
                command,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                env={**os.environ, "PYTHONPATH": paths},
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{what} did not open and run within {_LIMIT_S} s", code="env.timeout"
            ) from None
        if done.returncode == 0 and answer.exists():
            found: EnvFacts | ProbeRefusal = pickle.loads(answer.read_bytes())  # noqa: S301  our own
            if isinstance(found, ProbeRefusal):
                raise UsageError(found.text, code=found.code)
            return found
    raise UsageError(
        f"{what} cannot be opened: {_cause_of_death(done.returncode, done.stderr)}",
        code="env.cannot-open",
    )


def _cause_of_death(code: int, stderr: str) -> str:
    """Describe how the probe process ended, with the end of its stderr."""
    how = f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    output = f" ({summarize_traceback(stderr)})" if stderr.strip() else ""
    return f"its process {how}{output}"
