"""Drops of perturbed episodes against their clean counterparts."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats

from proctor.cli import main
from proctor.report.robustness.drops import (
    CLEAN_ERROR,
    NO_CLEAN,
    PERTURBED_ERROR,
    Robustness,
    make_robustness,
)
from proctor.report.robustness.sensitivity import Sensitivity, make_sensitivity
from proctor.report.robustness.table import robustness_json, robustness_lines, robustness_table
from proctor.report.run.run import load_run
from proctor.stats.differences import Paired, difference_interval
from proctor.stats.mean_changes import mean_change_interval
from proctor.stats.rates import clustered_effective_n
from proctor.types import Outcome
from tests.run_folders import eight_episodes, perturbed_run, write_run

CAMERA_1 = ("camera", 1)
CAMERA = {("camera", 1): "ssssfssss-", ("camera", 2): "fsfffefsff"}


def found(outcomes: dict[tuple[str, int | None], str], clean: str) -> Robustness:
    rows, record = perturbed_run(outcomes, clean)
    robustness = make_robustness(record.tasks or (), rows)
    assert robustness is not None
    return robustness


def effects(robustness: Robustness) -> Sensitivity:
    sensitivity = make_sensitivity(robustness)
    assert sensitivity is not None
    return sensitivity


def test_a_run_without_perturbed_tasks_has_no_robustness() -> None:
    assert make_robustness((), eight_episodes()) is None


def test_a_run_without_a_success_criterion_has_no_robustness() -> None:
    rows, record = perturbed_run(CAMERA, "ssssssssss")
    rows = [replace(row, outcome=Outcome.ENDED) for row in rows]
    assert make_robustness(record.tasks or (), rows) is None


def test_the_drop_is_over_the_pairs_of_the_same_seed() -> None:
    cell = found({("camera", 1): "sffs"}, "ssfs").cells[0]
    assert cell.counts == Paired(both=2, only_a=0, only_b=1, neither=1)
    assert (cell.clean, cell.perturbed, cell.drop) == (0.75, 0.5, 0.25)
    assert cell.interval == difference_interval(cell.counts)


def test_errors_and_missing_counterparts_are_left_out_and_named() -> None:
    robustness = found({("camera", 1): "sesds"}, "ssef")
    cell = robustness.cells[0]
    assert cell.counts == Paired(both=1, only_a=0, only_b=0, neither=1), "diverged is a failure"
    reasons = [one.reason for one in robustness.missing]
    assert reasons == [PERTURBED_ERROR, CLEAN_ERROR, NO_CLEAN]
    assert cell.missing == robustness.all.missing == 3
    text = robustness.missing_text
    assert text is not None
    assert all(f"camera 1: 1 ({reason})" in text for reason in reasons)


def test_episodes_that_were_not_run_are_counted() -> None:
    robustness = found(CAMERA, "ssssssssss")
    assert [cell.unfinished for cell in robustness.cells] == [1, 0]
    assert "camera 1: 1 not run" in (robustness.missing_text or "")


def test_dimensions_keep_the_order_of_the_plan_and_levels_rise() -> None:
    outcomes = {("light", 3): "s", ("camera", None): "s", ("light", 1): "s"}
    robustness = found(outcomes, "s")
    assert [cell.name for cell in robustness.cells] == ["light 1", "light 3", "camera"]
    assert [total.name for total in robustness.dimensions] == ["light", "camera"]


def test_a_total_is_as_sure_as_its_worlds_alone() -> None:
    clean, once = "s" * 18 + "ff", "sf" * 10
    one = found({("camera", 1): once}, clean)
    copies = found({("camera", level): once for level in (1, 2, 3)}, clean)
    total = copies.dimensions[0]
    assert (total.counts.n, total.units.distinct) == (60, 20)
    assert total.interval == pytest.approx(one.cells[0].interval), "copies tell nothing new"


def test_perturbed_episodes_of_a_world_that_end_differently_count_for_more() -> None:
    copies, apart = [(3, 3), (0, 3)] * 10, [(1, 3), (2, 3)] * 10
    assert clustered_effective_n(copies) == pytest.approx(20)
    assert clustered_effective_n(apart) == 60
    assert clustered_effective_n([(1, 3), (2, 3)] * 3) == pytest.approx(6), "too few starts"
    assert clustered_effective_n([(3, 3)] * 20) == pytest.approx(20), "all alike"
    assert clustered_effective_n([(1, 1), (0, 1)] * 10) == 20
    assert clustered_effective_n([]) == 0


def test_p_values_are_corrected_over_the_cells() -> None:
    robustness = found({("camera", 1): "f" * 8, ("camera", 2): "s" * 8}, "s" * 8)
    assert [cell.p_value for cell in robustness.cells] == pytest.approx([2 * 0.5**8, 1])
    assert robustness.cells[0].p_holm == pytest.approx(4 * 0.5**8)
    assert robustness.all.p_value is None


def test_episodes_of_one_start_are_paired_in_order() -> None:
    rows, record = perturbed_run({("camera", 1): "ssff"}, "sfsf")
    rows = [replace(row, seed=1000 + row.episode_index // 2, world="") for row in rows]
    robustness = make_robustness(record.tasks or (), rows)
    assert robustness is not None
    assert robustness.all.counts == Paired(both=1, only_a=1, only_b=1, neither=1)
    assert robustness.all.units.distinct == 2
    assert robustness.cells[0].p_value == 1.0, "each world once"


def test_the_worst_factor_has_the_largest_odds_of_failure() -> None:
    outcomes = {("camera", 1): "sssssssfss", ("camera", 2): "ffffffffff", ("light", None): "s" * 10}
    sensitivity = effects(found(outcomes, "s" * 9 + "f"))
    camera, light = sensitivity.dimensions
    assert camera.log_odds_ratio > 1 > light.log_odds_ratio
    worst = sensitivity.cells[1]
    assert (worst.dimension, worst.level) == ("camera", 2)
    assert 1 < worst.interval[0] < worst.log_odds_ratio < worst.interval[1] < 20
    assert worst.p_holm == pytest.approx(3 * worst.p_value)


def test_scores_are_compared_over_the_same_pairs() -> None:
    rows, record = perturbed_run({CAMERA_1: "sfs"}, "sss")
    values = {"point": (1.0, 1.0, 1.0), "point@camera-1": (1.0, 0.5, 0.3)}
    rows = [replace(r, scores={"subgoals": values[r.suite][r.episode_index]}) for r in rows]
    robustness = make_robustness(record.tasks or (), rows)
    assert robustness is not None
    (score,) = robustness.cells[0].scores
    assert (score.clean, score.perturbed, score.pairs) == (1.0, pytest.approx(0.6), 3)
    low, high = stats.t.interval(0.95, 2, loc=-0.4, scale=stats.sem([0, -0.5, -0.7]))
    assert score.interval == pytest.approx((low, high))
    assert mean_change_interval([1.0, 1.0], ["a", "b"]) is None, "no variation is not certainty"
    assert mean_change_interval([1.0, 2.0], ["a", "a"]) is None
    twice = mean_change_interval([0, -0.5, -0.7] * 2, ["a", "b", "c"] * 2)
    assert twice == pytest.approx((low, high)), "copies tell nothing new"


def test_without_pairs_there_is_no_model_and_no_drop() -> None:
    robustness = found({("camera", 1): "ss"}, "ee")
    assert make_sensitivity(robustness) is None
    assert (robustness.all.drop, robustness.all.interval) == (None, None)
    shown = text_of(robustness, None)
    assert "n/a" in shown


def text_of(robustness: Robustness, sensitivity: Sensitivity | None) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(robustness_table(robustness, sensitivity))
    return console.export_text()


def test_the_table_shows_cells_totals_and_missing_pairs() -> None:
    robustness = found(CAMERA | {("light", None): "s" * 10}, "s" * 9 + "f")
    lines = text_of(robustness, effects(robustness)).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "camera 1", "camera 2", "camera, all", "light", "all",
    ]  # fmt: skip
    assert "(+1 missing)" in lines[2]
    assert len(robustness_lines(robustness)) == 3


def test_a_loaded_run_has_it_in_markdown_and_json(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, *perturbed_run(CAMERA, "ssssssssss")))
    assert run.robustness is not None
    assert "| camera 2* |" in run.to_markdown()
    values = robustness_json(run.robustness, run.sensitivity)
    assert values["cells"][1]["n_pairs"] == 9
    assert values["cells"][1]["pc_drop"] == pytest.approx(100 * 7 / 9)
    assert values["missing_pairs"][0]["episode_index"] == 5
    assert len(values["sensitivity"]["cells"]) == 2


def test_report_prints_the_table_of_a_perturbed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path, *perturbed_run(CAMERA, "ssssssssss"))
    assert main(["report", str(folder)]) == 0
    head, *_, page = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "perturbation"
    assert page == f"report: {folder / 'report.html'}"
