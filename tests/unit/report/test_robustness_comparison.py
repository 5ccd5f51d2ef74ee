"""Two policies within each cell of perturbation: the drop of B against the drop of A."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from proctor.cli import main
from proctor.config.sections.evaluation import VideoSettings
from proctor.evaluation.video_replay import choose_episodes
from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.robustness.comparison import RobustnessComparison
from proctor.report.run.run import load_run
from proctor.stats.drop_difference import DropDifference
from tests.run_folders import perturbed_run, write_run

CAMERA, LIGHT = ("camera", 1), ("light", None)


def two_runs(folder: Path, a: dict[tuple[str, int | None], str], b: str, clean: str) -> list[Path]:
    """Write A with these outcomes, and B with others under the camera; both solve ``clean``."""
    runs = ((folder / "a", a), (folder / "b", a | {CAMERA: b}))
    return [write_run(path, *perturbed_run(outcomes, clean)) for path, outcomes in runs]


def compared(folders: list[Path], alpha: float = 0.05) -> RobustnessComparison:
    found = compare_all([load_run(folder) for folder in folders], Criteria(alpha))[0].robustness
    assert found is not None
    return found


def test_the_drop_of_b_is_set_against_that_of_a_in_every_cell(tmp_path: Path) -> None:
    folders = two_runs(
        tmp_path, {CAMERA: "ssssssssss", LIGHT: "ssssssssss"}, "ffffffffss", "s" * 10
    )
    found = compared(folders)
    camera, light = found.cells
    assert (camera.drop_a, camera.drop_b, camera.difference) == (0.0, 0.8, 0.8)
    assert camera.interval is not None
    assert 0.2 < camera.interval[0] < 0.8 < camera.interval[1] < 1.3
    assert camera.p_value == pytest.approx(2 * 0.5**8)
    assert camera.p_holm == pytest.approx(4 * 0.5**8)
    assert (light.difference, light.p_value) == (0.0, 1.0)
    assert found.all.difference == pytest.approx(0.4)


def test_only_pairs_of_both_runs_count(tmp_path: Path) -> None:
    folders = two_runs(tmp_path, {CAMERA: "sssss"}, "sefs-", "ssssf")
    found = compared(folders)
    assert [cell.pairs for cell in found.cells] == [3]
    assert (found.left_out_a, found.left_out_b) == (2, 0)


def drops(starts: Iterable[int]) -> DropDifference:
    """Pairs of these starts: only B loses the perturbed episode, but of one start."""
    found = DropDifference()
    for start in starts:
        found.add(start, 0, int(start > 0))
    return found


def test_a_start_that_is_used_twice_counts_as_one() -> None:
    once, twice = drops(range(9)), drops([*range(9), *range(9)])
    assert once.difference == twice.difference == pytest.approx(8 / 9)
    assert once.p_value == twice.p_value == pytest.approx(2 * 0.5**8)
    many, copied = drops(range(20)), drops([*range(20), *range(20)])
    assert copied.p_value == pytest.approx(many.p_value)
    assert copied.interval() == pytest.approx(many.interval())


def test_a_difference_of_2_is_one_piece_of_evidence() -> None:
    """Swapping A and B in each start, all six agree in 2 of 64 cases."""
    found = DropDifference()
    for start in range(6):
        found.add(start, -1, 1)
    assert found.difference == pytest.approx(2)
    assert found.p_value == pytest.approx(2 / 64)


def test_the_difference_of_drops_is_that_of_the_two_drops_and_turns_around() -> None:
    found, turned = DropDifference(), DropDifference()
    rng = np.random.default_rng(0)
    total = 0
    for start in range(30):
        a, b = (int(one) for one in rng.integers(-1, 2, 2))
        found.add(start, a, b)
        turned.add(start, b, a)
        total += b - a
    assert found.difference == pytest.approx(total / 30)
    assert found.p_value == pytest.approx(turned.p_value)
    interval, other = found.interval(), turned.interval()
    assert interval is not None
    assert other is not None
    assert interval == pytest.approx((-other[1], -other[0]))
    assert (found.p_value <= 0.05) == (interval[0] > 0 or interval[1] < 0)


def test_the_command_prints_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = two_runs(tmp_path, {CAMERA: "ssssssss", LIGHT: "ssssssss"}, "ffffffff", "s" * 8)
    out = tmp_path / "out.json"
    assert main(["compare", *map(str, folders), f"--json={out}"]) == 0
    shown = capsys.readouterr().out
    assert "camera 1*" in shown
    values = json.loads(out.read_text())["comparisons"][0]["robustness"]
    assert values["cells"][0]["difference"] == 1.0
    assert '"drop_b":1.0' in (folders[1] / "compare.html").read_text()


def test_a_lost_episode_is_filmed_with_its_clean_counterpart() -> None:
    rows, record = perturbed_run({CAMERA: "fffs"}, "fsss")
    perturbed = {
        (task.suite, task.task_id): task.perturbation
        for task in record.tasks or ()
        if task.perturbation is not None
    }
    chosen = choose_episodes(rows, VideoSettings(episodes=1), perturbed)
    assert chosen == [("point", 0, 0), ("point@camera-1", 0, 1), ("point", 0, 1)]
    assert choose_episodes(rows, VideoSettings(episodes=0), perturbed) == []
