"""Result cards: ``proctor report RUN --card`` and ``proctor compare CARD RUN``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.errors import UsageError
from proctor.report.claims.card_check import check_card
from proctor.report.claims.card_file import read_card
from proctor.report.run.run import load_run
from proctor.stats.equivalence import Verdict
from proctor.types import Outcome
from tests.refusals import refuses
from tests.run_folders import BEGAN, RECORD, eight_episodes, episode, infected, write_run

WON, LOST = Outcome.SUCCESS, Outcome.FAILURE
SEED_5 = RECORD.protocol | {"seed": 5}


def run_of(folder: Path, outcomes: str, **changes: Any) -> Path:
    """Write a run of one task; "s": success, anything else: failure."""
    rows = [episode(0, index, WON if o == "s" else LOST) for index, o in enumerate(outcomes)]
    record = replace(RECORD, planned_episodes=len(rows), sessions=[BEGAN + 5])
    return write_run(folder, rows, replace(record, **changes))


def card_of(folder: Path) -> Path:
    assert main(["report", str(folder), "--card"]) == 0
    return folder / "card.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", eight_episodes())


@pytest.fixture
def card(run: Path) -> Path:
    return card_of(run)


def test_a_card_is_not_written_to_standard_output(run: Path) -> None:
    assert main(["report", str(run), "--card=-"]) == 2
    assert not list(Path().glob("-*"))


def test_a_card_has_rates_intervals_fingerprint_protocol_and_the_command(
    run: Path, card: Path
) -> None:
    values = json.loads(card.read_text())
    expected = "57.1% [25.0, 84.2] n=7, 1 error (50.0% to 62.5% if it had counted)"
    assert values["overall"]["text"] == expected
    assert values["overall"]["interval"] == pytest.approx([0.2505, 0.8418], abs=1e-4)
    assert [task["outcomes"] for task in values["tasks"]] == [[[0, "ssfs"]], [[0, "fesf"]]]
    assert values["fingerprint"] == RECORD.fingerprint
    assert values["protocol"] == RECORD.protocol
    text = (run / "card.md").read_text()
    assert f"Success: **{expected}**" in text
    assert "proctor eval --policy.type=random --env.type=fake --eval.n_episodes=4" in text
    assert "| point | point-0 | 75.0% [30.1, 95.4] n=4 |" in text
    assert f"Fingerprint `{RECORD.fingerprint}`" in text
    assert "benchmark.horizon: 50" in text


def test_only_the_card_is_written_and_a_name_names_both_files(run: Path, tmp_path: Path) -> None:
    assert main(["report", str(run), f"--card={tmp_path / 'paper.v2.md'}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run", "paper.v2.md", "paper.v2.json"}
    assert not (run / "report.html").exists()


def test_an_incomplete_run_makes_no_claim(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", eight_episodes()[:5])
    assert main(["report", str(folder), "--card"]) == 2
    assert not list(folder.glob("card*"))


def test_hostile_names_stay_text_in_the_markdown(tmp_path: Path) -> None:
    rows, record = infected("<img src=x onerror=alert(1)>\n# Owned\n````\n|")
    folder = write_run(tmp_path / "run", rows, record)
    card_of(folder)
    text = (folder / "card.md").read_text()
    outside = text.split("## Reproduce")[0]
    assert "<img" not in outside.replace("\\<img", "")
    assert "\n# Owned" not in outside
    assert text.count("\n`````") == 4  # both ends of the command and of the protocol
    assert read_card(folder / "card.json").title.startswith("<img")


def test_a_repeated_run_agrees_with_its_card(
    card: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = write_run(tmp_path / "b", eight_episodes(), replace(RECORD, sessions=[BEGAN + 5]))
    capsys.readouterr()
    numbers = tmp_path / "numbers.json"
    assert main(["compare", str(card), str(again), f"--json={numbers}"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"card 57.1% [25.0, 84.2] n=7, 1 error  {card}",
        f"run  57.1% [25.0, 84.2] n=7, 1 error  {again}",
        "all 7 common episodes have the outcome that is on the card",
        "run - card +0.0 [-47.8, +47.8] points (95% interval)",
        "agrees: it repeats every episode of the card, outcome by outcome",
    ]
    assert err == ""
    assert json.loads(numbers.read_text())["checks"][0]["verdict"] == "agrees"


def test_a_run_that_contradicts_the_card_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = card_of(run_of(tmp_path / "a", "s" * 20))
    other = run_of(tmp_path / "b", "s" * 12 + "f" * 8, sessions=[BEGAN])
    capsys.readouterr()
    assert main(["compare", str(card), str(other)]) == 3
    out = capsys.readouterr().out
    assert "of 20 common episodes, 8 were solved on the card only and 0 in the run only" in out
    assert "run - card -40.0 [" in out
    assert out.splitlines()[-1].startswith("contradicts: ")


@pytest.mark.parametrize("n", [1, 3])
def test_a_few_failed_episodes_leave_a_card_of_20_successes_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int
) -> None:
    card = card_of(run_of(tmp_path / "a", "s" * 20))
    other, numbers = run_of(tmp_path / "b", "f" * n, sessions=[BEGAN]), tmp_path / "numbers.json"
    capsys.readouterr()
    assert main(["compare", str(card), str(other), f"--json={numbers}"]) == 4
    said = capsys.readouterr().out.splitlines()[-1]
    (check,) = json.loads(numbers.read_text())["checks"]
    assert check["verdict"] == "undecided"
    assert check["margin"] == 0.1
    assert check["more_episodes"] == 6 - n, "6 of 6 lost is the first that McNemar's test rejects"
    assert said.startswith("undecided: ")
    assert f"about {check['more_episodes']} more of its episodes would decide" in said


def test_a_run_agrees_if_a_larger_difference_than_the_margin_is_excluded(tmp_path: Path) -> None:
    card_path = card_of(run_of(tmp_path / "a", "s" * 97 + "fff"))
    card, run = read_card(card_path), load_run(run_of(tmp_path / "b", "s" * 96 + "ffff"))
    assert check_card(card, card_path, run).verdict is Verdict.AGREES
    strict = check_card(card, card_path, run, margin=0.01)
    assert strict.verdict is Verdict.UNDECIDED


def test_a_card_with_too_few_episodes_is_decided_by_no_number_of_them(tmp_path: Path) -> None:
    card_path = card_of(run_of(tmp_path / "a", "s" * 9 + "f", protocol=SEED_5))
    other = run_of(tmp_path / "b", "s" * 90 + "f" * 10, protocol=SEED_5 | {"seed": 6})
    check = check_card(read_card(card_path), card_path, load_run(other), accept=["seed"])
    assert (check.verdict, check.more_episodes) == (Verdict.UNDECIDED, None)


def test_of_several_runs_the_worst_verdict_is_the_exit_code(tmp_path: Path) -> None:
    card = card_of(run_of(tmp_path / "a", "s" * 20))
    few, worse = run_of(tmp_path / "b", "f"), run_of(tmp_path / "c", "f" * 20)
    same = run_of(tmp_path / "d", "s" * 20)
    assert main(["compare", str(card), str(same), str(few)]) == 4
    assert main(["compare", str(card), str(same), str(few), str(worse)]) == 3


def test_a_margin_needs_a_card_and_lies_between_0_and_1(card: Path, run: Path) -> None:
    assert main(["compare", str(run), str(run), "--margin=0.1"]) == 2
    assert main(["compare", str(card), str(run), "--margin=0"]) == 2


def test_the_cards_own_run_confirms_nothing(card: Path, run: Path) -> None:
    check = check_card(read_card(card), card, load_run(run))
    assert any("confirms nothing" in line for line in check.warnings)


def test_a_run_of_another_protocol_is_refused_with_the_difference(
    card: Path, tmp_path: Path
) -> None:
    protocol = RECORD.protocol | {"benchmark": {"type": "fake", "horizon": 99}}
    other = write_run(tmp_path / "b", eight_episodes(), replace(RECORD, protocol=protocol))
    with refuses(UsageError, "card.protocol-differs") as refused:
        check_card(read_card(card), card, load_run(other))
    assert "benchmark.horizon was 50, now 99" in str(refused.value)
    assert "--accept=benchmark" in str(refused.value)


def test_other_seeds_are_independent_samples_once_they_are_accepted(tmp_path: Path) -> None:
    card = card_of(run_of(tmp_path / "a", "s" * 10, protocol=SEED_5))
    other = load_run(run_of(tmp_path / "b", "sf" * 10, protocol=SEED_5 | {"seed": 6}))
    with refuses(UsageError, "card.protocol-differs"):
        check_card(read_card(card), card, other)
    check = check_card(read_card(card), card, other, accept=["seed"])
    assert (check.only_card, check.episodes, check.difference) == (None, 20, -0.5)
    assert check.verdict is Verdict.CONTRADICTS


def test_a_run_without_one_of_the_tasks_is_refused(card: Path, tmp_path: Path) -> None:
    part = [row for row in eight_episodes() if row.task_id == 0]
    other = write_run(tmp_path / "b", part, replace(RECORD, planned_episodes=4))
    with refuses(UsageError, "card.tasks-differ"):
        check_card(read_card(card), card, load_run(other))


def test_independent_samples_need_equal_shares_of_every_task(tmp_path: Path) -> None:
    rows = eight_episodes()
    record = replace(RECORD, protocol=SEED_5)
    card = card_of(write_run(tmp_path / "a", rows, record))
    record = replace(record, protocol=SEED_5 | {"seed": 6}, planned_episodes=5)
    easier = write_run(tmp_path / "b", [*rows[:4], rows[4]], record)
    with refuses(UsageError, "card.tasks-differ"):
        check_card(read_card(card), card, load_run(easier), accept=["seed"])


def test_an_episode_that_repeats_a_world_counts_once(tmp_path: Path) -> None:
    rows = [replace(episode(0, index, WON), world="one") for index in range(20)]
    card = card_of(write_run(tmp_path / "a", rows, replace(RECORD, planned_episodes=20)))
    check = check_card(read_card(card), card, load_run(tmp_path / "a"))
    assert check.episodes == 1


def test_the_card_comes_first_and_flags_of_runs_are_refused(
    card: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([run, card], [card, card], [card, run, "--unpaired"], [run, run, "--accept=a"]):
        assert main(["compare", *map(str, words)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["compare", str(run / "card.md"), str(run)]) == 2
    assert "card.json" in capsys.readouterr().err


def claimed(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda card: card["overall"].update({name: value})


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a higher rate": claimed("rate", 0.9),
    "a narrower interval": claimed("interval", [0.5, 0.6]),
    "more successes": claimed("successes", 6),
    "no errors": claimed("errors", 0),
    "impossible worlds": claimed("worlds", 700),
    "an effective sample size of nothing": claimed("effective_n", 0.001),
    "a rate that is not a number": claimed("rate", "high"),
    "another fingerprint": lambda card: card.update(fingerprint="0" * 16),
    "another protocol": lambda card: card["protocol"].update(seed=1),
    "an episode twice": lambda card: card["tasks"][0]["outcomes"].append([0, "s"]),
    "unknown letters": lambda card: card["tasks"][0].update(outcomes=[[0, "ssxs"]]),
    "a task twice": lambda card: card["tasks"].append(card["tasks"][0]),
    "an unknown kind of interval": lambda card: card.update(interval="Laplace"),
    "no tasks": lambda card: card.update(tasks=[]),
    "another kind of file": lambda card: card.update(kind="resume"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_card_that_contradicts_itself_is_refused_in_one_line(
    card: Path,
    run: Path,
    lie: Callable[[dict[str, Any]], Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = json.loads(card.read_text())
    lie(values)
    card.write_text(json.dumps(values))
    capsys.readouterr()
    assert main(["compare", str(card), str(run)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    with refuses(UsageError, "card.not-a-card"):
        read_card(card)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "card.not-a-card"),
        (b"\xff\xfe", "card.not-a-card"),
        (b"[" * 100_000, "card.not-a-card"),
        (b'{"kind": "proctor-card"}', "card.not-a-card"),
        (b'{"kind": "proctor-card", "x": ' + b"[" * 100 + b"]" * 100 + b"}", "card.not-a-card"),
        (b'{"kind": "proctor-card", "format": 3}', "card.too-new"),
        (b'{"kind": NaN}', "card.not-a-card"),
        (b" " * (8 * 2**20 + 1), "card.unreadable"),
    ],
)
def test_a_file_that_is_no_card_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(content)
    with refuses(UsageError, code):
        read_card(file)
