"""``proctor compare`` and ``proctor eval --against`` as a user meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import proctor
from proctor.cli import main
from proctor.number_text import points_text


def evaluate(folder: Path, policy: str, *words: str) -> Path:
    done = main(["eval", f"--policy.type={policy}", f"--output_dir={folder}", *words])
    assert done == 0
    return folder


IN_PROCESS = "--eval.use_async_envs=false"
ON_FAKE = ("--env.type=fake", "--env.n_tasks=2", "--eval.n_episodes=20", IN_PROCESS)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluate(tmp_path_factory.mktemp("runs") / "good", "expert", *ON_FAKE)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluate(tmp_path_factory.mktemp("runs") / "bad", "zero", *ON_FAKE)


def test_the_table_shows_the_difference_of_every_task_with_interval_and_p_value(
    good: Path, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["compare", str(bad), str(good)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    header = "task A B B - A [95% interval] p p (Holm) P(B > A)"
    assert " ".join(lines[0].split()) == header
    assert lines[1].split()[:4] == ["point-0*", "0/20", "20/20", "+100.0"]
    assert " ".join(lines[3].split()) == "all 0/40 40/40 +100.0 [+78.7, +100.0] <0.001 1.000"
    assert f"A 0.0% [0.0, 8.8] n=40  {bad}" in lines
    assert "significantly better (Holm, alpha 0.05): point-0, point-1" in lines
    assert err == ""


@pytest.mark.parametrize(("margin", "code"), [("0.02", 3), ("0", 3), ("0.95", 0)])
def test_the_gate_exits_with_3_when_a_run_is_worse_by_more_than_the_margin(
    good: Path, bad: Path, margin: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(good), str(bad), f"--fail-if-worse={margin}"]) == code
    verdict = "worse" if code else "not shown to be worse"
    points = f"{100 * float(margin):g}"
    assert f"gate: {verdict} by more than {points} points (p" in capsys.readouterr().out


def test_a_better_run_and_a_worse_run_without_a_gate_pass(good: Path, bad: Path) -> None:
    assert main(["compare", str(bad), str(good), "--fail-if-worse=0.02"]) == 0
    assert main(["compare", str(good), str(bad)]) == 0


def test_every_further_run_is_compared_with_the_first(
    good: Path, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "numbers.json"
    again = evaluate(tmp_path / "again", "expert", *ON_FAKE)
    capsys.readouterr()
    words = [str(good), str(again), str(bad), "--fail-if-worse=0.02", f"--json={file}"]
    assert main(["compare", *words]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert "2 runs are compared with A: their p-values (Holm) and intervals" in out
    assert "p<0.001 (Holm over 2 runs; p<0.001 alone)" in out
    assert "the policies of A and B are defined alike" in out
    itself, other = json.loads(file.read_text())["comparisons"]
    assert (itself["a"], itself["b"]) == (str(good), str(again))
    assert not itself["significantly_worse"]
    assert itself["overall"]["difference"] == 0
    assert itself["overall"]["p_value"] == 1
    assert (other["b"], other["significantly_worse"]) == (str(bad), True)
    assert other["overall"]["difference"] == -1
    assert [task["name"] for task in other["tasks"]] == ["point-0", "point-1"]
    assert other["criteria"] == {"alpha": 0.05, "margin": 0.02, "paired": True}


def test_terminal_page_json_and_python_have_the_same_numbers(
    good: Path, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With several runs too, where p-values and intervals are corrected."""
    middle = evaluate(tmp_path / "middle", "random", *ON_FAKE)
    file, page = tmp_path / "numbers.json", tmp_path / "page.html"
    runs = [good, bad, middle]
    capsys.readouterr()
    assert main(["compare", *map(str, runs), f"--json={file}", f"--html={page}"]) == 0
    shown = capsys.readouterr().out
    written = json.loads(file.read_text())["comparisons"]
    text = page.read_text().split('<script type="application/json" id="run">')[1]
    sections = json.loads(text.split("</script>")[0])["comparisons"]
    for one, of_json, of_page in zip(proctor.compare(*runs), written, sections, strict=True):
        overall = one.overall
        assert one.interval is not None
        for shape in (of_json["overall"], of_page["overall"]):
            assert shape["difference"] == overall.difference
            assert shape["interval"] == list(one.interval)
            assert shape["p_holm"] == one.p_value
        assert of_json["verdict"] == one.verdict
        assert one.verdict in of_page["verdict"].lower()
        assert of_page["verdict"] in shown
        points = points_text(one.difference, one.interval)
        assert f"B - A {points} points, {of_page['p_equals']}" in shown
        assert [task["interval"] for task in of_page["tasks"]] == [
            list(task.interval or ()) for task in one.tasks
        ]


def test_the_last_line_says_where_the_page_is(
    good: Path, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(good), str(bad), "--fail-if-worse=0"]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == f"page: {bad / 'compare.html'}"
    assert (bad / "compare.html").is_file()
    chosen = tmp_path / "chosen.html"
    assert main(["compare", str(good), str(bad), f"--html={chosen}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"page: {chosen}"
    assert chosen.is_file()


def test_other_seeds_need_unpaired(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = evaluate(tmp_path / "other", "expert", *ON_FAKE, "--seed=7")
    capsys.readouterr()
    assert main(["compare", str(good), str(other)]) == 2
    assert "have no common episode (task, seed, init state)" in capsys.readouterr().err
    assert main(["compare", str(good), str(other), "--unpaired", "--fail-if-worse=0"]) == 0
    out, err = capsys.readouterr()
    assert "with 40 episodes each, a true difference of" in out
    assert err == ""


def test_another_protocol_is_warned_of_by_name(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = evaluate(tmp_path / "other", "expert", *ON_FAKE, "--env.episode_length=60")
    capsys.readouterr()
    assert main(["compare", str(good), str(other)]) == 0
    said = capsys.readouterr().err.splitlines()
    horizon = "the most steps of an episode: benchmark.horizon is 50 in A, 60 in B"
    assert f"warning: protocols differ: {horizon}" in said


@pytest.fixture
def hurt(good: Path, tmp_path: Path) -> Path:
    """A copy of a run whose journal has a damaged line."""
    hurt = tmp_path / "hurt"
    shutil.copytree(good, hurt)
    journal = hurt / "episodes.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:4], "{nonsense\n", *lines[5:]]))
    return hurt


def test_report_and_a_resumed_run_name_a_damaged_line_as_compare_does(
    hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = f"warning: {hurt}: skipped unreadable lines of episodes.jsonl: 5"
    capsys.readouterr()
    for words in (["--csv=-"], []):
        assert main(["report", str(hurt), *words]) == 0
        out, err = capsys.readouterr()
        assert err.splitlines() == [warning]
        assert "unreadable" not in out
    evaluate(hurt, "expert", *ON_FAKE, "--resume")
    assert capsys.readouterr().err.splitlines().count(warning) == 1
    evaluate(hurt, "expert", *ON_FAKE, "--resume")
    assert warning in capsys.readouterr().err.splitlines(), "no episode is left to run"


def test_a_damaged_line_is_skipped_and_named_by_number(
    good: Path, hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["compare", str(good), str(hurt)]) == 0
    out, err = capsys.readouterr()
    damaged, unfinished, copied = err.splitlines()
    assert damaged == f"warning: {hurt}: skipped unreadable lines of episodes.jsonl: 5"
    assert f"{hurt} is unfinished (39 of 40 episodes)" in unfinished
    assert "39 of 39 episodes of B are copies of A's" in copied
    assert "episodes without a partner: 1 in A, 0 in B" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "RUN RUN [RUN ...], got 0"),
        (["GOOD"], "RUN RUN [RUN ...], got 1"),
        (["GOOD", "nowhere"], "nowhere is not a run folder (it has no run.json)"),
        (["GOOD", "EMPTY"], "has no finished episode: its success rate is n/a"),
        (["GOOD", "BAD", "--fial-if-worse=1"], "unknown flag --fial-if-worse; did you mean --fail"),
        (["GOOD", "BAD", "--alpha=2"], "--alpha must be from 1e-09 to below 0.5, got 2"),
        (["GOOD", "BAD", "--alpha=x"], "--alpha: expected float, got 'x'"),
        (["GOOD", "BAD", "--alpha=1e-17"], "--alpha must be from 1e-09 to below 0.5, got 1e-17"),
        (["GOOD", "BAD", "--fail-if-worse=2"], "--fail-if-worse must be from 0 to below 1"),
        (["GOOD", "BAD", "--fail-if-worse"], "--fail-if-worse needs a value"),
        (["GOOD", "BAD", "--unpaired=maybe"], "--unpaired: expected bool, got 'maybe'"),
        (["GOOD", "BAD", "--json=no/such/folder.json"], "cannot write no/such/folder.json"),
        (["GOOD", "BAD", "--html=no/such/page.html"], "cannot write no/such/page.html"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    good: Path,
    bad: Path,
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty"
    shutil.copytree(good, empty)
    (empty / "episodes.jsonl").unlink()
    places = {"GOOD": str(good), "BAD": str(bad), "EMPTY": str(empty)}
    capsys.readouterr()
    assert main(["compare", *[places.get(word, word) for word in words]]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("proctor: error: ")
    assert err.count("\n") == 1


def test_help_tells_what_the_gate_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    assert "--fail-if-worse=FLOAT" in capsys.readouterr().out


def test_eval_against_takes_the_episodes_of_the_other_run_and_stops_when_sure(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = evaluate(tmp_path / "new", "zero", f"--against={good}", IN_PROCESS)
    out = capsys.readouterr().out
    assert f"stopped: worse than {good} at alpha 0.05 after 8 pairs, 0 won to 8 lost" in out
    assert "of 40 planned episodes were run)" in out
    assert main(["eval", "--resume", f"--output_dir={folder}", "--eval.n_episodes=21"]) == 0
    assert "stopped: worse than" in capsys.readouterr().out, "it is decided, and stays so"
    assert main(["compare", str(good), str(folder)]) == 0
    assert "stopped itself early (worse than" in capsys.readouterr().err
    assert main(["eval", "--resume", f"--output_dir={folder}", "--against=none"]) == 0
    out = capsys.readouterr().out
    assert "n=42" in out
    assert "\nstopped: " not in out
    assert "decided after results were seen" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against=nowhere"], "--against: nowhere is not a run folder (it has no run.json)"),
        (["--against=GOOD", "--env.type=metaworld"], "is on fake, not on metaworld"),
        (["--against=GOOD", "--seed=1"], "has none of the planned episodes"),
        (
            ["--env.type=fake", "--eval.stop_when=soon"],
            "write ci_width<0.05",
        ),
    ],
)
def test_what_cannot_be_stopped_or_compared_is_refused_before_anything_starts(
    good: Path,
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    words = [word.replace("GOOD", str(good)) for word in words]
    folder = tmp_path / "run"
    assert main(["eval", "--policy.type=zero", f"--output_dir={folder}", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert not folder.exists()
