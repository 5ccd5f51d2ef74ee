"""``proctor reproduce``: the table of claims, the verdict, and runs of a user's own claims."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.commands.evaluation.reproduce import ReproduceCommand
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.errors import UsageError
from proctor.report.claims.claims import Claim, check_claim, find_claim, read_claims
from proctor.report.run.summary import tally
from proctor.stats.equivalence import Verdict, verdict_of
from proctor.types import Outcome
from tests.refusals import refuses
from tests.run_folders import episode

CLAIMS = """
solved:
  policy: expert
  benchmark: fake
  episodes: 40
  published: {published}
  n: 500
  source: a test, 2026
"""
CHECKPOINT = Path(__file__).parents[2] / (
    "golden/data/written_by_a825226/act.training/checkpoints/last/pretrained_model"
)
IN_PROCESS = "--eval.use_async_envs=false"


def claim(published: float, n: int | None = None) -> Claim:
    return Claim(
        policy="random",
        benchmark="fake",
        episodes=10,
        published=published,
        n=n,
        source="a test, 2026",
    )


def verdict(published: float, n: int | None, solved: int, episodes: int) -> Verdict:
    outcomes = [Outcome.SUCCESS] * solved + [Outcome.FAILURE] * (episodes - solved)
    rows = [episode(0, i, outcome) for i, outcome in enumerate(outcomes)]
    return check_claim(claim(published, n), tally(rows), 0.1).verdict


@pytest.mark.parametrize(
    ("published", "n", "solved", "episodes", "wanted"),
    [
        (87.3, None, 426, 500, Verdict.AGREES),
        (87.3, 400, 426, 500, Verdict.AGREES),
        (87.3, 400, 350, 500, Verdict.CONTRADICTS),
        (87.3, 400, 8, 10, Verdict.UNDECIDED),
        (80.0, None, 700, 1000, Verdict.CONTRADICTS),
        (80.0, 10, 700, 1000, Verdict.UNDECIDED),  # 8 of 10: the published value is no better
        (100.0, 50, 0, 50, Verdict.CONTRADICTS),
    ],
)
def test_the_verdict_follows_from_the_interval_of_the_difference(
    published: float, n: int | None, solved: int, episodes: int, wanted: Verdict
) -> None:
    assert verdict(published, n, solved, episodes) is wanted


def test_the_line_of_the_verdict_has_both_rates_and_the_interval() -> None:
    rows = [episode(0, i, Outcome.SUCCESS if i < 80 else Outcome.FAILURE) for i in range(100)]
    found = str(check_claim(claim(87.3), tally(rows), 0.2))
    assert found == "published 87.3%, measured 80.0% [71.1, 86.7]: contradicts"


@pytest.mark.parametrize(("published", "solved", "n"), [(87.3, 35, 40), (100, 20, 20), (50, 1, 2)])
def test_an_undecided_claim_says_how_many_more_episodes_decide(
    published: float, solved: int, n: int
) -> None:
    outcomes = [Outcome.SUCCESS] * solved + [Outcome.FAILURE] * (n - solved)
    rows = [episode(0, i, outcome) for i, outcome in enumerate(outcomes)]
    check = check_claim(claim(published), tally(rows), 0.1)
    assert check.verdict is Verdict.UNDECIDED
    assert check.more_episodes is not None
    assert f"about {check.more_episodes:,} more episodes would decide" in check.reason
    factor = 1 + check.more_episodes / n
    later = tally(rows).interval_after(factor) or (0, 0)
    difference = (later[0] - published / 100, later[1] - published / 100)
    assert verdict_of(difference, 0.1) is not Verdict.UNDECIDED


def test_a_claim_of_few_episodes_is_decided_by_no_number_of_ours() -> None:
    rows = [episode(0, i, Outcome.SUCCESS if i % 10 else Outcome.FAILURE) for i in range(50)]
    check = check_claim(claim(90.0, 10), tally(rows), 0.1)
    assert (check.verdict, check.more_episodes) == (Verdict.UNDECIDED, None)


@pytest.mark.parametrize("name", list(read_claims()))
def test_a_published_claim_is_a_valid_evaluation_with_a_source(name: str) -> None:
    found = read_claims()[name]
    config = build(EvalConfig, found.settings())
    assert config.policy.type == "pretrained"
    assert re.search(r", 20[0-9]{2}\b", found.source)
    assert found.url is not None
    assert found.run_by_us is None


def test_the_list_has_values_sources_and_that_we_did_not_run_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "--list"]) == 0
    out = capsys.readouterr().out
    assert "diffusion-pusht: 65.4% [61.1, 69.4] n=500" in out
    assert out.count("not run by us") == out.count("source: ") == len(read_claims())


def test_a_users_claim_is_run_checked_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "mine.yaml", tmp_path / "run"
    file.write_text(CLAIMS.format(published=99.0))
    words = ["reproduce", "solved", f"--claims={file}", f"--output_dir={folder}", IN_PROCESS]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("[91.2, 100.0]: agrees")
    assert json.loads((folder / "claim.json").read_text())["verdict"] == "agrees"
    file.write_text(CLAIMS.format(published=50.0))
    assert main([*words, "--resume"]) == 3
    file.write_text(CLAIMS.format(published=99.0))
    assert main([*words, "--resume", "--margin=0.01"]) == 4


def test_a_local_checkpoint_is_checked_against_its_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    file, folder = tmp_path / "mine.yaml", tmp_path / "run"
    content = {
        "act": {
            "checkpoint": str(CHECKPOINT),
            "benchmark": "fake",
            "episodes": 4,
            "flags": {"env.n_tasks": 2, "env.episode_length": 14},
            "published": 100,
            "source": "a test, 2026",
        }
    }
    file.write_text(json.dumps(content))
    words = ["reproduce", "act", f"--claims={file}", f"--output_dir={folder}", IN_PROCESS]
    code = main(words)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("published 100.0%, measured ")
    assert code == (0 if "agrees" in last else 3 if "contradicts" in last else 4)
    assert json.loads((folder / "claim.json").read_text())["claim"]["checkpoint"] == str(CHECKPOINT)


def test_a_flag_that_changes_the_protocol_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(CLAIMS.format(published=99.0))
    words = ["reproduce", "solved", f"--claims={file}", f"--output_dir={tmp_path / 'run'}"]
    main([*words, IN_PROCESS, "--eval.n_episodes=3", "--seed=7"])
    notes = [line for line in capsys.readouterr().err.splitlines() if "as in the published" in line]
    assert len(notes) == 1
    assert "--seed" in notes[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "claims.unreadable"),
        ("[", "claims.invalid"),
        ("- a", "claims.invalid"),
        ("a: {}", "claims.invalid"),
        (CLAIMS.format(published=130), "claims.invalid"),
        (CLAIMS.format(published=10) + "  publisher: me\n", "claims.invalid"),
        (CLAIMS.format(published=10) + "  checkpoint: me/policy\n", "claims.invalid"),
    ],
)
def test_a_wrong_file_of_claims_is_refused(tmp_path: Path, text: str | None, code: str) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    with refuses(UsageError, code):
        read_claims(file)


def test_a_claim_of_a_file_runs_no_code_unless_a_flag_names_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(CLAIMS.format(published=10).replace("expert", "os:system"))
    command = ReproduceCommand.parse("proctor reproduce", ["solved", f"--claims={file}"])
    assert command is not None
    with refuses(UsageError, "code.not-trusted"):
        command.run()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "argument.count"),
        (["a", "b"], "argument.count"),
        (["pi05-libero", "--margin=0"], "flag.out-of-range"),
        (["pi05-libero", "--seed=1,2"], "flag.invalid-value"),
    ],
)
def test_a_wrong_question_is_refused(words: list[str], code: str) -> None:
    with refuses(UsageError, code):
        command = ReproduceCommand.parse("proctor reproduce", words)
        assert command is not None
        command.run()


def test_an_unknown_name_is_refused() -> None:
    with refuses(UsageError, "claims.unknown"):
        find_claim(read_claims(), "pi05")
