"""``proctor list``: what there is to choose from."""

from __future__ import annotations

import pytest

from proctor.benchmarks.metaworld.tasks import SPLITS
from proctor.cli import main


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["list", *words]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_benchmarks_have_their_groups_and_the_number_of_their_tasks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = {line.split()[0]: line for line in listed(capsys, "benchmarks")}
    assert lines["metaworld"].endswith("50")
    assert "mt50, easy, medium, hard, very_hard" in lines["metaworld"]
    assert "libero_10, libero_90, libero_all  " in lines["libero"]
    assert lines["libero"].endswith("  130")
    assert lines["gym"].endswith("by id")


def test_tasks_have_instructions_groups_with_ids_and_lengths(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head, *lines = listed(capsys, "tasks", "metaworld")
    assert head.split("  ")[0] == "task"
    assert len(lines) == 50
    (reach,) = [line.split("  ") for line in lines if line.startswith("reach-v3 ")]
    cells = [cell.strip() for cell in reach if cell.strip()]
    place = SPLITS["easy"].index("reach-v3")
    assert cells == ["reach-v3", "Reach a goal position", f"mt50 40, easy {place}", "500", "80"]


def test_a_group_and_flags_of_the_benchmark_choose(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(listed(capsys, "tasks", "metaworld", "hard")) == 1 + len(SPLITS["hard"])
    flags = ["--env.type=libero", "--env.task=libero_spatial", "--env.protocol=openpi"]
    lines = listed(capsys, "tasks", *flags)
    assert len(lines) == 11
    assert all(line.split()[-2:] == ["220", "20"] for line in lines[1:])
    assert "libero_spatial 9" in lines[-1]


def test_all_tasks_of_all_benchmarks_and_what_needs_an_id_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = listed(capsys, "tasks")
    assert "pusht: PushT: push a T-shaped block onto its target" in lines
    assert any(line.startswith("--env.id is missing") for line in lines)


def test_policies_say_what_they_are_and_which_can_be_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = {line.split()[0]: line for line in listed(capsys, "policies")}
    assert lines["act"].endswith("proctor train")
    assert not lines["random"].endswith("proctor train")
    assert "proctor list tasks" in listed(capsys)[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["taks"], "did you mean 'tasks'?"),
        (["policies", "act"], "only `proctor list tasks` takes more"),
        (["tasks", "metaworld", "hard", "x"], "unexpected word 'x'"),
        (["tasks", "metaworld", "--env.type=libero"], "contradicts"),
        (["tasks", "--policy.type=act"], "takes --env.*"),
        (["tasks", "--env.task=hard"], "name the benchmark too"),
        (["tasks", "metawrld"], "did you mean 'metaworld'?"),
    ],
)
def test_what_cannot_be_listed_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
