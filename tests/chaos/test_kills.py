"""A sample of `make chaos-kills`, and the list of commands that it covers."""

from __future__ import annotations

import pytest

from proctor.commands.shared.names import COMMANDS
from tests.chaos.command_cases import CASES
from tests.chaos.kills import PAIRS, Bench, run_trial

SAMPLE = [("data", "SIGKILL"), ("report", "SIGINT"), ("teleoperate", "SIGKILL"), ("view", "SIGHUP")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("kills") / "bench", [name for name, _ in SAMPLE])


@pytest.mark.parametrize(("name", "strike"), SAMPLE)
def test_a_struck_command_leaves_nothing_and_can_be_completed(
    bench: Bench, name: str, strike: str
) -> None:
    trial = run_trial(bench, 0, PAIRS.index((name, strike)))
    assert trial.sound, trial


def test_every_command_is_struck() -> None:
    assert set(COMMANDS) <= {name.partition(" ")[0] for name in CASES}
