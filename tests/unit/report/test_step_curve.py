"""Success against training step: checkpoints of one training are one curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.compare.data import compare_data
from proctor.report.run.run import Run, load_run
from proctor.report.run.step_curve import checkpoint_of, step_curves
from proctor.runs.paths import RecordedPath
from proctor.types import Outcome
from tests.run_folders import RECORD, episode, write_run

WON, LOST, BROKE = Outcome.SUCCESS, Outcome.FAILURE, Outcome.ERROR


def run_of(folder: Path, path: str, outcomes: list[Outcome], *, seed: int = 1000) -> Run:
    """Write and load a run of the checkpoint at ``path``."""
    rows = [episode(0, index, outcome) for index, outcome in enumerate(outcomes)]
    rows = [replace(row, seed=seed + row.episode_index, world="") for row in rows]
    for row in rows:
        row.__post_init__()
    recorded = RecordedPath(path, path, "x", existed=True)
    record = replace(RECORD, paths={"policy.path": recorded}, planned_episodes=len(rows))
    return load_run(write_run(folder, rows, record))


def test_the_path_of_a_checkpoint_tells_its_training_and_step(tmp_path: Path) -> None:
    found = checkpoint_of(run_of(tmp_path, "/w/act/checkpoints/000200/pretrained_model", [WON]))
    assert found is not None
    assert (str(found.training), found.step) == ("/w/act", 200)
    for other in ("/w/act/pretrained_model", "/w/checkpoints/best/x", "me/policy"):
        assert checkpoint_of(run_of(tmp_path, other, [WON])) is None
    plain = replace(RECORD, resolved={"policy": {"path": "act/checkpoints/7"}})
    old = load_run(write_run(tmp_path / "old", [episode(0, 0, WON)], plain))
    assert checkpoint_of(old) is not None, "a run from before paths were recorded"


def test_checkpoints_are_points_in_the_order_of_steps_and_seeds_are_pooled(tmp_path: Path) -> None:
    place = "/w/act/checkpoints/{:06}/pretrained_model"
    runs = [
        run_of(tmp_path / "b", place.format(400), [WON, WON, WON]),
        run_of(tmp_path / "a", place.format(200), [WON, LOST, LOST]),
        run_of(tmp_path / "c", place.format(200), [WON, LOST, LOST], seed=2000),
        run_of(tmp_path / "d", place.format(400), [WON, WON, BROKE], seed=2000),
        run_of(tmp_path / "e", "/w/other/checkpoints/000200/pretrained_model", [WON]),
    ]
    (curve,) = step_curves(runs)
    assert curve["name"] == "act"
    points = [(p["step"], p["successes"], p["episodes"]) for p in curve["points"]]
    assert points == [(200, 2, 5), (400, 5, 5)], "one episode errored at step 400"
    assert curve["left_out"] == 2
    low, high = curve["points"][0]["interval"]
    assert low < 0.4 < high
    assert step_curves(runs[2:3]) == []


def test_the_overview_has_a_row_for_every_run(tmp_path: Path) -> None:
    place = "/w/act/checkpoints/{:06}/pretrained_model"
    outcomes = {100: [LOST] * 10, 200: [WON] * 5 + [LOST] * 5, 300: [WON] * 10}
    runs = [run_of(tmp_path / str(s), place.format(s), own) for s, own in outcomes.items()]
    comparisons = compare_all(runs, Criteria())
    values = compare_data(runs, comparisons, tmp_path, gate=False)
    rows = values["overview"]
    assert [(row["name"], row["step"], row["rate"]) for row in rows] == [
        ("100", 100, 0.0), ("200", 200, 0.5), ("300", 300, 1.0),
    ]  # fmt: skip
    assert rows[0]["change"] is None
    assert rows[2]["change"]["difference"] == 1.0
    assert rows[2]["differs"]
    assert compare_data(runs[:2], comparisons[:1], tmp_path, gate=False)["overview"] is None
