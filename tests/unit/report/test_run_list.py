"""The list of runs labels recordings, counts their demonstrations, and survives broken runs."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.report.run.page_data import page_data
from proctor.report.run.run import Run, load_run
from proctor.report.server.run_list import list_data
from proctor.runs.records import PlannedTask
from proctor.types import Outcome
from tests.run_folders import RECORD, eight_episodes, write_run
from tests.training_folders import RECORD as TRAINING
from tests.training_folders import write_training

TWO_EACH = [PlannedTask("point", n, f"point-{n}", "go", 50, 2) for n in range(2)]


@pytest.mark.parametrize(
    ("keep", "done", "status"), [("success", 3, "incomplete"), ("all", 4, "complete")]
)
def test_a_recording_counts_the_demonstrations_that_it_wants(
    tmp_path: Path, keep: str, done: int, status: str
) -> None:
    record = replace(
        RECORD,
        resolved=RECORD.resolved | {"record": {"keep": keep}},
        planned_episodes=4,
        tasks=TWO_EACH,
    )
    write_run(tmp_path / "demos.recording", eight_episodes(), record)
    (row,) = list_data(tmp_path)["runs"]
    assert (row["kind"], row["unit"], row["status"]) == ("recording", "demonstrations", status)
    assert (row["done"], row["planned"]) == (done, 4), "eight attempts are not eight of four"
    page = page_data(load_run(tmp_path / "demos.recording"), running=True)
    assert (page["recorded"], page["unit"], page["planned"]) == (done, "demonstrations", 4)
    assert (page["left_s"] == 0.0) == (done == 4)


def test_the_page_of_a_recording_without_a_demonstration_is_not_starting(tmp_path: Path) -> None:
    rows = [row for row in eight_episodes() if row.outcome is not Outcome.SUCCESS]
    record = replace(RECORD, resolved=RECORD.resolved | {"record": {"keep": "success"}})
    write_run(tmp_path, rows, record)
    page = page_data(load_run(tmp_path), running=True)
    assert (page["recorded"], page["left_s"], page["begun"]) == (0, None, True)


def test_an_evaluation_that_keeps_rollouts_is_a_run(tmp_path: Path) -> None:
    record = replace(RECORD, resolved=RECORD.resolved | {"record": "rollouts"})
    write_run(tmp_path / "one", eight_episodes(), record)
    (row,) = list_data(tmp_path)["runs"]
    assert (row["kind"], row["unit"], row["done"]) == ("run", "episodes", 8)


def _places(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON tree."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*place, key))


_TRAINING = TRAINING | {
    "resolved": {
        "rl": {"actors": 1},
        "ema": {"enable": True, "use_for_eval": True},
        "dataset": {"repo_id": "me/demos"},
        "policy": {"type": "act", "overrides": {"online_steps": 5}},
    },
    "datasets": [{"first_step": 0, "identity": {"episodes": 3}, "repo_id": "me/demos"}],
}


@pytest.mark.parametrize("odd", ["x", 5, ["x"], {"x": {}}], ids=repr)
@pytest.mark.parametrize("file", ["run/run.json", "training/train.json"])
def test_a_broken_file_costs_the_list_at_most_its_own_row(
    tmp_path: Path, file: str, odd: object
) -> None:
    resolved = RECORD.resolved | {"record": {"keep": "all"}, "eval": {"n_episodes": 4}}
    write_run(tmp_path / "run", eight_episodes(), replace(RECORD, resolved=resolved))
    write_training(tmp_path / "training", record=_TRAINING)
    rows = [row for row in list_data(tmp_path)["runs"] if row["place"] == Path(file).parent.name]
    assert [row["error"] for row in rows] == [None]
    valid = json.loads((tmp_path / file).read_text())
    listed = len(list_data(tmp_path)["runs"])
    for *parents, key in _places(valid):
        tree = holder = copy.deepcopy(valid)
        for parent in parents:
            holder = holder[parent]
        holder[key] = odd
        (tmp_path / file).write_text(json.dumps(tree))
        rows = list_data(tmp_path)["runs"]
        broken = {row["place"] for row in rows if row["error"]}
        assert (len(rows), broken - {Path(file).parent.name}) == (listed, set())


@pytest.mark.parametrize("file", ["episodes.jsonl", "sessions.jsonl", "eval_info.json"])
@pytest.mark.parametrize("what", ["folder", "pipe", "loop", "no line in 65 MiB"])
def test_an_odd_file_costs_the_list_at_most_its_own_row(
    tmp_path: Path, file: str, what: str
) -> None:
    write_run(tmp_path / "good", eight_episodes())
    odd = write_run(tmp_path / "odd", eight_episodes()) / file
    odd.unlink(missing_ok=True)
    if what == "folder":
        odd.mkdir()
    elif what == "pipe":
        os.mkfifo(odd)
    elif what == "loop":
        odd.symlink_to(odd)
    else:
        odd.touch()
        os.truncate(odd, 65 * 2**20)
    rows = {row["place"]: row["error"] for row in list_data(tmp_path)["runs"]}
    assert rows["good"] is None
    assert "odd" in rows
    assert rows["odd"] is not None or file != "episodes.jsonl"


def test_a_run_whose_files_cannot_be_read_costs_the_list_its_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "good", eight_episodes())
    locked = write_run(tmp_path / "locked", eight_episodes())

    def load(folder: Path) -> Run:
        if folder == locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return load_run(folder)

    monkeypatch.setattr("proctor.report.server.run_list.load_run", load)
    rows = {row["place"]: row["error"] for row in list_data(tmp_path)["runs"]}
    assert rows["good"] is None
    assert "Permission denied" in rows["locked"]


def test_links_in_cycles_do_not_multiply_the_list(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "run", eight_episodes())
    for number in range(20):
        (tmp_path / "a" / f"link-{number}").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "latest").symlink_to("run")
    places = {row["place"] for row in list_data(tmp_path)["runs"]}
    assert places == {"a/run", "a/latest"}
