"""Inspection of gymnasium environments in this interpreter. ``probe`` runs it."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from proctor.benchmarks.gym.probe import EnvFacts, ProbeRefusal, ProbeRequest, env_facts
from proctor.benchmarks.gym.sim import choose_backend
from proctor.errors import UsageError
from proctor.system.graphics.gl import choose_backend_on_import
from proctor.system.user_code import error_location, exception_line
from proctor_worker.gym_env.inspection import Inspection
from proctor_worker.records import Refused


def inspect_env(request: ProbeRequest) -> EnvFacts:
    """Open the environments in this process and return their facts."""
    inspection = Inspection(
        request.opener,
        request.rule,
        request.episode_length,
        choose_backend_on_import,
        choose_backend,
    )
    try:
        found = inspection.run()
    except Refused as error:
        raise UsageError(str(error), code=error.code) from None
    return env_facts(found, _variables())


def _variables() -> dict[str, str]:
    """Return the variables that must be set in every process that opens the environment."""
    backend = os.environ.get("MUJOCO_GL")
    return {"MUJOCO_GL": backend} if backend and "mujoco" in sys.modules else {}


def answer_probe(request: ProbeRequest) -> EnvFacts | ProbeRefusal:
    """Return the facts, or the refusal: one line with the exception and its line of code."""
    try:
        return inspect_env(request)
    except UsageError as error:
        return ProbeRefusal(str(error), error.code)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the other process reports it
        place = error_location(error)
        where = f" ({place})" if place else ""
        text = f"{request.opener.description} cannot be opened: {exception_line(error)}{where}"
        return ProbeRefusal(text, "env.cannot-open")


def _main(asked: str, answered: str) -> None:
    from proctor.benchmarks.gym.env_inspection import (
        answer_probe,  # by its own name, not __main__'s
    )

    request = pickle.loads(Path(asked).read_bytes())  # noqa: S301  written by our parent
    Path(answered).write_bytes(pickle.dumps(answer_probe(request)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
