"""``proctor eval`` of several checkpoints or seeds: a folder each, one table, one comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_policies as small
from tests.refusals import refuses
from tests.run_folders import episode

from proctor.cli import main
from proctor.commands.evaluation import eval as eval_command
from proctor.commands.evaluation.eval_several import (
    Variant,
    checkpoints_of,
    shared_starts_note,
    variants_of,
)
from proctor.errors import EXIT_INTERRUPTED, PolicyError, UsageError
from proctor.features import ACTION, ENVIRONMENT_STATE, Feature, FeatureKind
from proctor.report.run import run as run_module
from proctor.report.run.multi_run import POOLED_ROW
from proctor.runs.journal import read_journal
from proctor.types import Outcome

FAKE = ["--env.type=fake", "--eval.use_async_envs=false", "--eval.n_episodes=2", "--live=false"]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training's folder with two checkpoints that see no pictures, and a link to the last."""
    monkeypatch.chdir(tmp_path)
    act = small.small_act(
        input_features={ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float32")},
        output_features={ACTION: Feature(FeatureKind.ACTION, (2,), "float32")},
    )
    for step in ("000010", "000020"):
        folder = tmp_path / "train" / "checkpoints" / step
        folder.mkdir(parents=True)
        small.write_small(act, folder / "pretrained_model")
    (tmp_path / "train" / "checkpoints" / "last").symlink_to("000020")
    return tmp_path / "train"


def named(settings: dict[str, Any]) -> dict[str, Variant]:
    return {variant.name: variant for variant in variants_of(settings)}


def test_a_pattern_names_every_checkpoint_once(training: Path) -> None:
    both = [f"train/checkpoints/{step}/pretrained_model" for step in ("000010", "000020")]
    assert checkpoints_of("train/checkpoints/*") == both
    assert checkpoints_of("train/checkpoints/*/pretrained_model") == both
    assert checkpoints_of(["train/checkpoints/0*20", both[0]]) == [both[1], both[0]]
    assert checkpoints_of(f"{both[0]},me/on_the_hub") == [both[0], "me/on_the_hub"]
    assert checkpoints_of(str(training)) == [str(training)], "what exists is one, whatever its name"
    with refuses(UsageError, "checkpoint.not-found") as refused:
        checkpoints_of("train/9*")
    assert "--policy.path=train/9*" in str(refused.value)


def test_runs_are_called_by_what_tells_their_paths_apart() -> None:
    assert [*named({"policy.path": "a/1/pretrained_model,a/2/pretrained_model"})] == ["1", "2"]
    assert [*named({"policy.path": "x/a/ckpt,x/b/c/ckpt"})] == ["a", "b-c"]
    assert [*named({"policy.path": "me/act,you/act"})] == ["me", "you"]
    assert [*named({"policy.path": "x,x/y"})] == ["x", "y"]
    assert [*named({"policy": {"path": ["a", "b"]}, "seed": [1, 2]})] == [
        "a_seed1", "a_seed2", "b_seed1", "b_seed2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "value", "code"),
    [
        ("seed", "1,1", "flag.duplicate"),
        ("seed", "1,2,01", "flag.duplicate"),
        ("seed", [1, 2, 1], "flag.duplicate"),
        ("eval.latency_steps", "0,0", "flag.duplicate"),
        ("policy.type", "random,random", "flag.duplicate"),
        ("policy.type", "[zero, random, zero]", "flag.duplicate"),
        ("policy.path", "me/act,me/act", "flag.duplicate"),
        ("policy.type", "random,", "flag.invalid-value"),
        ("seed", "1,,2", "flag.invalid-value"),
        ("policy.path", ",me/act", "flag.invalid-value"),
    ],
)
def test_a_list_of_runs_names_each_of_them_once(flag: str, value: Any, code: str) -> None:
    with refuses(UsageError, code) as refused:
        variants_of({flag: value})
    assert str(refused.value).startswith(f"--{flag}: ")


def test_a_repeated_item_is_refused_before_its_value_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("random,random", "random,"):
        assert main(["eval", f"--policy.type={value}", *FAKE]) == 2
        assert capsys.readouterr().err.startswith("proctor: error: --policy.type: ")


def test_one_checkpoint_and_one_seed_are_one_run_as_before(training: Path) -> None:
    given = {"policy.path": "somewhere", "seed": "7"}
    assert [variant.settings for variant in variants_of(given)] == [given]
    (only,) = variants_of({"policy.path": "train/checkpoints/*10"})
    assert only.settings["policy.path"] == "train/checkpoints/000010/pretrained_model"


def test_checkpoints_have_a_folder_each_one_table_and_one_comparison(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--policy.path=train/checkpoints/*", *FAKE, "--output_dir=out"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for step in ("000010", "000020"):
        run = json.loads(Path("out", step, "run.json").read_text())
        assert run["config"]["given"]["policy.path"].endswith(f"{step}/pretrained_model")
        assert f"\n{step}  " in said
    assert "compared with 000010, in points:\n  000020  +0.0 " in said
    assert "page: out/compare.html" in said
    assert Path("out/compare.html").is_file()
    assert main(words) == 2, "the folders are taken"
    more = [word.replace("n_episodes=2", "n_episodes=3") for word in words]
    assert main([*more, "--resume"]) == 0
    assert [len(read_journal(Path("out", step)).rows) for step in ("000010", "000020")] == [3, 3]


def test_seeds_are_counted_together_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "--policy.type=zero", "--seed=1,2", "--job_name=two", *FAKE]) == 0
    (root,) = Path("outputs/eval").glob("*/*_two")
    assert sorted(path.name for path in root.iterdir()) == ["seed1", "seed2"]
    assert [row.seed for row in read_journal(root / "seed2").rows] == [2, 3]
    said = capsys.readouterr().out
    assert f"\n{POOLED_ROW}  " in said
    assert "these seeds share starts; evaluate on others with --seed=1,3" in said


def test_checkpoints_and_seeds_are_pooled_by_checkpoint_and_compared_in_pairs(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--policy.path=train/checkpoints/*", "--seed=10,20", *FAKE]
    assert main([*words, "--output_dir=out"]) == 0
    said = capsys.readouterr().out
    for step in ("000010", "000020"):
        assert f"\n{step}_seed10  " in said
        row = next(line for line in said.splitlines() if line.startswith(f"{step} {POOLED_ROW}"))
        assert "n=4" in row, "two episodes of each seed"
    assert "compared with 000010 over 2 seeds, in points:\n  000020  " in said
    assert "share starts" not in said
    page = Path("out/compare.html").read_text()
    values = json.loads(page.split('id="run">')[1].split("</script>")[0])
    (section,) = values["comparisons"]
    assert sorted(section["pairs"]["seed"]) == [10, 11, 20, 21]
    (curve,) = values["steps"]
    assert [(point["step"], point["episodes"]) for point in curve["points"]] == [(10, 4), (20, 4)]


def test_a_start_that_two_seeds_share_weighs_once_in_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--policy.type=expert,zero", "--seed=1,2", *FAKE, "--output_dir=out"]
    assert main(["eval", *words]) == 0
    said = capsys.readouterr()
    assert "expert together  100.0%" in said.out
    assert "n=4 (3 starts)" in said.out
    page = Path("out/compare.html").read_text()
    values = json.loads(page.split('id="run">')[1].split("</script>")[0])
    (comparison,) = values["comparisons"]
    assert (comparison["overall"]["a"], comparison["overall"]["b"]) == ([4, 4], [0, 4])
    assert comparison["overall"]["p"] == 0.25, "three pairs that only one policy solved"


def test_policy_types_have_a_run_each_and_one_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", "--policy.type=expert,random", *FAKE, "--output_dir=out"]
    assert main(words) == 0
    for kind in ("expert", "random"):
        run = json.loads(Path("out", kind, "run.json").read_text())
        assert run["config"]["given"]["policy.type"] == kind
    assert "compared with expert, in points:\n  random  " in capsys.readouterr().out
    more = [word.replace("n_episodes=2", "n_episodes=3") for word in words]
    assert main([*more, "--resume"]) == 0
    assert [len(read_journal(Path("out", kind)).rows) for kind in ("expert", "random")] == [3, 3]
    assert main(["eval", "--policy.type=expert,randm", *FAKE, "--output_dir=other"]) == 2
    assert not Path("other").exists()
    assert [*named({"policy.type": "a,b", "seed": "1,2"})] == [
        "a_seed1", "a_seed2", "b_seed1", "b_seed2",
    ]  # fmt: skip
    with refuses(UsageError, "flag.conflict"):
        variants_of({"policy.type": "a,b", "policy.path": "x"})


def test_one_without_a_finished_episode_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    loading = run_module.load_run

    def load(path: Path) -> Any:
        if path.name == "seed1":
            raise UsageError(f"{path} has no finished episode: its success rate is n/a")
        return loading(path)

    monkeypatch.setattr(run_module, "load_run", load)
    assert main(["eval", "--policy.type=zero", "--seed=1,2", "--job_name=two", *FAKE]) == 0
    said = capsys.readouterr().out
    assert "seed1 has no finished episode: its success rate is n/a" in said
    assert "seed2" in said.partition("n/a")[2]
    assert POOLED_ROW not in said.partition("n/a")[2]


def test_what_one_of_them_is_refused_for_is_said_before_any_begins(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = "--policy.path=train/checkpoints/000010/pretrained_model,train/checkpoints/nope"
    assert main(["eval", paths, *FAKE, "--output_dir=out"]) == 2
    assert not Path("out").exists()
    assert main(["eval", "--policy.path=train/checkpoints/*", "--env.type=fake", "--resume"]) == 2
    assert "--resume needs --output_dir=FOLDER, which holds the runs" in capsys.readouterr().err


def test_what_the_one_policy_of_all_is_refused_for_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--policy.type=random", "--policy.n_obs_steps=0", "--env.type=fake", "--seed=1,2,3"]
    assert main(["eval", *words, f"--output_dir={tmp_path / 'out'}"]) == 2
    told = capsys.readouterr()
    assert told.err == "proctor: error: --policy.n_obs_steps must be at least 1, got 0\n"
    assert told.out == ""
    assert not (tmp_path / "out").exists()


def test_one_that_breaks_is_named_and_the_others_go_on(
    training: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = eval_command.evaluate_and_show

    def breaking(settings: dict[str, Any], *shown: Any) -> Any:
        if "000010" in settings["policy.path"]:
            raise PolicyError("actions that are no numbers")
        return evaluate(settings, *shown)

    monkeypatch.setattr(eval_command, "evaluate_and_show", breaking)
    words = ["eval", "--policy.path=train/checkpoints/*", *FAKE, "--output_dir=out"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert "proctor: error: 000010: actions that are no numbers" in told.err
    assert "\n000020  " in told.out
    assert "compared with" not in told.out


def test_an_interrupted_series_says_how_to_go_on_with_all_of_it(
    training: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = (training, EXIT_INTERRUPTED)
    monkeypatch.setattr(eval_command, "_evaluate_one_of_several", lambda *_: stopped)
    words = ["eval", "--policy.path=train/checkpoints/*", "--env.type=fake", "--output_dir=out"]
    assert main(words) == EXIT_INTERRUPTED
    assert capsys.readouterr().err.endswith(
        "  proctor eval '--policy.path=train/checkpoints/*' --env.type=fake --resume "
        "--output_dir=out\n"
    )


@pytest.mark.parametrize(
    ("path", "seed", "words"),
    [
        ("a" * 5000 + "*", "1", "too long"),
        ("a\0*,b", "1", "control codes"),
        ("~nobody_here/*", "1", "~nobody_here"),
        ("a", ",".join(map(str, range(1001))), "1001"),
    ],
)
def test_what_no_list_of_runs_can_be_is_one_line(path: str, seed: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        variants_of({"policy.path": path, "seed": seed})
    assert words in str(refused.value)


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b", "~nobody_here/x", "", "[", "a[,b]", ",,"])
def test_what_is_no_path_at_all_is_left_to_those_who_read_paths(path: str) -> None:
    try:
        assert variants_of({"policy.path": path})
    except UsageError as refused:
        assert refused.code in ("checkpoint.not-found", "flag.invalid-value")  # noqa: PT017


def test_another_seed_is_no_advice_where_seeds_do_not_choose_the_start() -> None:
    rows = [replace(episode(0, i, Outcome.SUCCESS), seed=seed) for seed in (1, 9) for i in (0, 1)]
    fixed = [replace(row, world=f"init{row.episode_index}") for row in rows]
    assert "--seed=1 --eval.n_episodes=4" in (shared_starts_note(fixed, [1, 9], 2) or "")
    same = [replace(row, seed=row.episode_index, world=f"seed{row.episode_index}") for row in rows]
    assert "others with --seed=1,3" in (shared_starts_note(same, [1, 2], 2) or "")
    apart = [replace(row, world=f"seed{row.seed + row.episode_index}") for row in rows]
    assert shared_starts_note(apart, [1, 9], 2) is None
