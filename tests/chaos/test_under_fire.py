"""A sample of `make chaos`, and tests of its checks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from proctor.runs.folder import RunFolder
from proctor.runs.journal import JOURNAL_FILE
from proctor.types import EpisodeKey, Outcome
from tests.chaos import leftovers
from tests.chaos.scenario import KINDS, PLAN, Scenario, make_scenario
from tests.chaos.trial import Course, Verdict, run_trial, undisturbed, whole_rows

SEED = 3
SAMPLE = [
    "simulator: nan",
    "a worker is stopped, the parent killed",
    "the fork server is killed",
    "SIGINT",
    "SIGHUP",
    "the reader of its output goes away",
    "no locks: the parent is killed",
    "the disk fills up",
    "power cut: last line ends in zeros",
    "the fork server is killed, workers idle",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def expected(base: Path) -> dict[EpisodeKey, Course]:
    return undisturbed(base)


def amid_the_run(name: str, home: Path) -> Scenario:
    """Return the first trial of a kind that attacks neither at the start nor near the end."""
    first = [kind.name for kind in KINDS].index(name)
    trials = (make_scenario(SEED, number, home) for number in count(first, len(KINDS)))
    return next(
        trial
        for trial in trials
        if trial.kind.attack is None
        or trial.kind.moment is not None
        or 1 <= trial.moments[0].episodes <= len(PLAN) // 2
    )


@pytest.mark.parametrize("name", SAMPLE)
def test_a_disturbed_run_is_completed_with_the_same_episodes(
    base: Path, expected: dict[EpisodeKey, Course], name: str
) -> None:
    home = base / name.replace(" ", "-")
    verdict = run_trial(amid_the_run(name, home), home, expected)
    assert verdict.sound, verdict
    assert verdict.landed


def test_a_scenario_depends_only_on_its_seed(tmp_path: Path) -> None:
    trials = [make_scenario(SEED, number, tmp_path) for number in range(2 * len(KINDS))]
    assert trials == [make_scenario(SEED, number, tmp_path) for number in range(2 * len(KINDS))]
    assert trials != [make_scenario(SEED + 1, number, tmp_path) for number in range(2 * len(KINDS))]
    assert {trial.kind.name for trial in trials} == {kind.name for kind in KINDS}


def test_lost_duplicated_and_changed_episodes_are_counted(
    base: Path, expected: dict[EpisodeKey, Course], tmp_path: Path
) -> None:
    journal = (base / "undisturbed" / JOURNAL_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL_FILE).write_bytes(b"".join([*journal[1:], journal[5], b'{"suite":\n']))
    rows = whole_rows(tmp_path)
    rows[0] = replace(rows[0], digest="another")
    rows.insert(3, replace(rows[3], outcome=Outcome.ERROR, digest=None))  # and was tried again
    verdict = Verdict(make_scenario(SEED, 0, tmp_path))
    verdict.hold_against(rows, expected)
    assert (verdict.lost, verdict.duplicated, verdict.changed) == (1, 1, 1)
    assert not verdict.sound


def test_leftovers_are_found(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    mark = f"test-{os.getpid()}"  # another run on this machine has its own
    with subprocess.Popen(["sleep", "60"], env={**os.environ, leftovers.MARK: mark}) as process:
        while not leftovers.processes_of(mark):  # its variables are readable a moment later
            time.sleep(0.01)
        (found,) = leftovers.orphans(mark, grace_s=0.1)
    assert found.startswith(f"process {process.pid} (")
    assert leftovers.orphans(mark) == []
    segment = "open('/dev/shm/proctor-test', 'w')"
    command = leftovers.with_own_shared_memory([sys.executable, "-c", segment], temporary)
    subprocess.run(command, check=True)
    if leftovers.can_have_own_shared_memory():
        assert leftovers.segments(temporary) == ["shared memory proctor-test"]
        (temporary / "proctor-test").unlink()
    (folder / "eval_info.json.part").touch()
    (temporary / "pymp-x").mkdir()
    assert len(leftovers.temporary_files(folder, temporary)) == 2
    with RunFolder(folder).locked():
        assert leftovers.held_lock(folder) != []
    assert leftovers.held_lock(folder) == []
