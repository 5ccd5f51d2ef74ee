"""A sample of `make chaos-files`, and the list of commands that it covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.commands.shared.verbs import VERBS
from tests.chaos.files.__main__ import shares, sweep_command
from tests.chaos.files.cases import CASES
from tests.chaos.files.injection import FAULTS, compile_injector, require_injector
from tests.chaos.files.sweep import PAIRS, sweeping

SAMPLE = ("data delete", "record", "report", "train")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_injector()
    return compile_injector(tmp_path_factory.mktemp("injector"))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_failed_file_operation_loses_nothing(name: str, tmp_path: Path, library: Path) -> None:
    """One operation for each fault; a pause takes 10 s and is left to `make chaos-files`."""
    faults = [fault for fault in FAULTS if fault.name != "paused"]
    counts = {(name, fault.name): 1 for fault in faults}
    trials = sweep_command(name, counts, 0, tmp_path, library)
    assert [trial.fault for trial in trials] == faults
    assert [str(trial) for trial in trials if not trial.sound] == []


def test_the_injector_fails_the_operation_that_it_should(tmp_path: Path, library: Path) -> None:
    """Without this, a library that preloads nothing would pass every trial."""
    with sweeping("data delete", tmp_path, library) as sweep:
        full = next(fault for fault in FAULTS if fault.name == "ENOSPC from there on")
        points = sweep.points(full, 0)
        assert {"open", "write", "rename", "mkdir", "fsync"} <= {one.call for one in points}
        plain = [one for one in points if ".parquet" not in one.path]  # pyarrow names no reason
        write = next(one for one in plain if one.call == "write")
        trial = sweep.run_trial(full, write.number)
        assert trial is not None
        assert trial.ended.failed is not None
        assert trial.ended.failed.group == write.group
        assert trial.is_one_line
        assert "no space left" in trial.ended.said.lower()


def test_the_trials_are_divided_among_all_commands_and_faults() -> None:
    counts = shares(len(PAIRS) + 3, PAIRS)
    assert sum(counts.values()) == len(PAIRS) + 3
    assert set(counts.values()) == {1, 2}


def test_every_verb_of_data_is_a_case() -> None:
    assert {f"data {verb}" for verb in VERBS["data"]} <= set(CASES)
    others = {"eval", "train", "record", "report", "compare", "reproduce", "train-online"}
    assert {*others, "benchmarks install"} <= set(CASES)
