"""The values of the comparison page and its HTML file, without a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.compare.data import compare_data, link
from proctor.report.compare.page import write_compare_page
from proctor.report.run.latency_curve import latency_curves
from proctor.report.run.run import load_run
from proctor.runs.folder import RunRecord
from proctor.runs.journal import EpisodeRecord
from proctor.types import Outcome
from tests.run_folders import RECORD, eight_episodes, episode, infected, write_run

WON, LOST, BROKE = Outcome.SUCCESS, Outcome.FAILURE, Outcome.ERROR


def run_of(folder: Path, outcomes: Sequence[Outcome], record: RunRecord = RECORD) -> Path:
    """Write a complete run with its own start time."""
    rows = [episode(0, i, outcome) for i, outcome in enumerate(outcomes)]
    later = 100.0 * ord(folder.name[0])
    rows = [replace(row, start_time=row.start_time + later) for row in rows]
    return write_run(folder, rows, replace(record, planned_episodes=len(rows)))


def film(folder: Path, row: EpisodeRecord) -> None:
    video = folder / row.video
    video.parent.mkdir(parents=True, exist_ok=True)
    video.write_bytes(b"")


def page_of(*folders: Path, output: Path | None = None, criteria: Criteria | None = None) -> Path:
    runs = [load_run(folder) for folder in folders]
    return write_compare_page(runs, compare_all(runs, criteria or Criteria()), output)


def embedded(page: Path) -> dict[str, Any]:
    """Return the JSON values that are embedded in the page."""
    text = page.read_text(encoding="utf-8")
    block = text.split('<script type="application/json" id="run">')[1].split("</script>")[0]
    values: dict[str, Any] = json.loads(block)
    return values


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        (
            [WON] * 10,
            [WON] * 2 + [LOST] * 8,
            "B is worse by 80.0 points, statistically significant (p=0.008)",
        ),
        (
            [LOST] * 10,
            [LOST] + [WON] * 9,
            "B is better by 90.0 points, statistically significant (p=0.004)",
        ),
        (
            [WON] * 10,
            [WON] * 8 + [LOST] * 2,
            "Undecided. Too few episodes to decide: the difference lies in [-58.1, +23.4]; "
            "about 620 more starts of each run would show 5 points",
        ),
        (
            [WON] * 400,
            [WON] * 400,
            "Undecided: the difference lies in [-1.3, +1.3]; so many episodes usually show "
            "5 points",
        ),
    ],
)
def test_the_verdict_says_whether_b_differs(
    of_a: list[Outcome], of_b: list[Outcome], words: str, tmp_path: Path
) -> None:
    page = page_of(run_of(tmp_path / "a", of_a), run_of(tmp_path / "b", of_b))
    assert page == tmp_path / "b/compare.html"
    values = embedded(page)
    assert values["title"] == "b against a"
    assert values["comparisons"][0]["verdict"] == words


def test_pairs_that_only_one_run_solved_come_first_and_errors_last(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", [BROKE, WON, LOST, LOST, WON])
    b = run_of(tmp_path / "b", [WON, WON, LOST, WON, LOST])
    section = embedded(page_of(a, b))["comparisons"][0]
    pairs = section["pairs"]
    assert pairs["seed"] == [1004, 1003, 1002, 1001, 1000]
    assert pairs["kind"] == [0, 1, 2, 3, 4]
    assert pairs["outcome_a"] == ["success", "failure", "failure", "success", "error"]
    assert pairs["steps_a"] == [50, 40, 30, 20, None]
    assert section["overall"]["a"] == [2, 4]
    assert section["overall"]["errors"] == [1, 0]


def test_a_task_that_changed_significantly_is_flagged(tmp_path: Path) -> None:
    for name, outcomes in (("a", (WON, WON)), ("b", (LOST, WON))):
        rows = [episode(task, i, outcomes[task]) for task in (0, 1) for i in range(10)]
        write_run(tmp_path / name, rows)
    changed, same = embedded(page_of(tmp_path / "a", tmp_path / "b"))["comparisons"][0]["tasks"]
    assert (changed["name"], changed["flagged"], changed["a"], changed["b"]) == (
        "point-0",
        True,
        [10, 10],
        [0, 10],
    )
    assert changed["p_holm"] == pytest.approx(2 * changed["p"])
    assert (same["flagged"], same["p_text"]) == (False, "1.000")


def test_videos_and_reports_are_linked_from_where_the_page_lies(tmp_path: Path) -> None:
    rows = eight_episodes()
    a, b = write_run(tmp_path / "runs/a b#?", rows), write_run(tmp_path / "runs/b", rows)
    film(a, rows[0])
    film(b, rows[0])
    film(b, rows[3])
    (a / "report.html").touch()
    values = embedded(page_of(a, b))
    pairs = values["comparisons"][0]["pairs"]
    columns = (pairs["seed"], pairs["video_a"], pairs["video_b"])
    seen = {seed: (x, y) for seed, x, y in zip(*columns, strict=True) if x or y}
    first = "videos/point_0/episode_0.mp4"
    assert seen == {
        1000: (f"../a%20b%23%3F/{first}", first),
        1003: (None, "videos/point_0/episode_3.mp4"),
    }
    assert values["a"]["report"] == "../a%20b%23%3F/report.html"
    assert values["comparisons"][0]["b"]["report"] is None
    elsewhere = embedded(page_of(a, b, output=tmp_path / "page.html"))
    assert f"runs/b/{first}" in elsewhere["comparisons"][0]["pairs"]["video_b"]


def test_links_hold_any_file_name_and_are_never_addresses_of_another_kind(tmp_path: Path) -> None:
    assert link(tmp_path / "javascript:alert(1)", tmp_path) == "javascript%3Aalert%281%29"
    assert link(tmp_path / os.fsdecode(b"\xff"), tmp_path) == "%FF"


def test_every_further_run_has_its_section_with_what_differs(tmp_path: Path) -> None:
    a, b = run_of(tmp_path / "a", [WON] * 4), run_of(tmp_path / "b", [WON] * 4)
    longer = {**RECORD.protocol, "benchmark": {"type": "fake", "horizon": 60}}
    c = run_of(tmp_path / "c", [WON] * 4, replace(RECORD, protocol=longer))
    values = embedded(page_of(a, b, c))
    first, second = values["comparisons"]
    assert values["title"] == "2 runs against a"
    assert [first["b"]["name"], second["b"]["name"]] == ["b", "c"]
    assert first["warnings"] == []
    assert second["warnings"] == [
        "protocols differ: the most steps of an episode: benchmark.horizon is 50 in A, 60 in B"
    ]
    assert first["gate"] is None


def test_the_gate_is_on_the_page_when_there_was_one(tmp_path: Path) -> None:
    a, b = run_of(tmp_path / "a", [WON] * 10), run_of(tmp_path / "b", [LOST] * 10)
    runs = [load_run(a), load_run(b)]
    comparisons = compare_all(runs, Criteria(margin=0.02))
    values = compare_data(runs, comparisons, tmp_path, gate=True)
    assert values["comparisons"][0]["gate"].startswith("worse by more than 2 points (p")


def test_separate_samples_have_no_pairs(tmp_path: Path) -> None:
    a, b = run_of(tmp_path / "a", [WON] * 4), run_of(tmp_path / "b", [WON] * 4)
    values = embedded(page_of(a, b, criteria=Criteria(paired=False)))
    assert values["comparisons"][0]["pairs"] is None


def test_nothing_from_outside_is_markup_and_nothing_is_fetched(tmp_path: Path) -> None:
    text = "<script>alert(1)<!-- {{script}} \"onerror='&\u2028"
    rows, record = infected(text)
    a, b = (write_run(tmp_path / f"{text}{name}", rows, record) for name in "ab")
    write_run(b, rows, replace(record, protocol={"benchmark": {text: f"{text}!"}, "policy": {}}))
    page = page_of(a, b)
    written = page.read_text(encoding="utf-8")
    assert "<script>alert" not in written
    assert written.lower().count("<script") == 2
    assert "\u2028" not in written
    assert "default-src 'none'" in written
    assert written.count("http") == written.count("http-equiv") + 1, "the name space of SVG"
    values = embedded(page)
    assert values["title"] == f"{text}b against {text}a"
    assert values["comparisons"][0]["tasks"][0]["name"] == f"{text}/0 {text}", "one of two"


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    a, b = run_of(tmp_path / "a", [WON, LOST]), run_of(tmp_path / "b", [LOST, LOST])
    assert page_of(a, b).read_bytes() == page_of(a, b).read_bytes()


def test_runs_that_differ_in_latency_alone_are_one_curve(tmp_path: Path) -> None:
    runs = []
    for policy, latency in (("a", 0), ("a", 4), ("a", 2), ("b", 0)):
        told = {"eval": {"latency_steps": latency or None}}
        config = {"latency_steps": latency or None} | ({"new": None} if latency == 4 else {})
        told["policy"] = {"type": policy, "config": config}
        record = replace(RECORD, protocol={**RECORD.protocol, **told})
        folder = tmp_path / f"{policy}_latency{latency}"
        runs.append(load_run(write_run(folder, eight_episodes(), record)))
    (curve,) = latency_curves(runs)
    assert curve["name"] == "a"
    assert [point["latency"] for point in curve["points"]] == [0, 2, 4]
    assert curve["left_out"] == 3, "an episode errored, in each run"
    assert latency_curves(runs[-1:]) == []


def test_a_latency_curve_is_of_the_same_episodes_at_every_point(tmp_path: Path) -> None:
    """Other tasks, fewer episodes and errors must not look like an effect of latency."""
    easy = [episode(0, i, WON) for i in range(6)]
    hard = [episode(1, i, LOST) for i in range(6)]
    runs = []
    for latency, rows in ((0, easy), (4, easy[:4] + hard), (8, [episode(0, 0, BROKE), *easy[1:]])):
        protocol = {**RECORD.protocol, "eval": {"latency_steps": latency or None}}
        record = replace(RECORD, protocol=protocol)
        runs.append(load_run(write_run(tmp_path / f"latency{latency}", rows, record)))
    (curve,) = latency_curves(runs)
    assert [(point["successes"], point["episodes"]) for point in curve["points"]] == [(3, 3)] * 3
    assert curve["left_out"] == (6 - 3) + (10 - 3) + (6 - 3)
