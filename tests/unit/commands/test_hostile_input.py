"""What fuzzing found (tests/fuzz), each case by name: one line, exit code 2, nothing done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor import cli
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.parsing import path_of, read_config_file
from proctor.errors import RunFolderError, UsageError
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation
from proctor.policies.scripted.random import RandomPolicy
from proctor.report.run.page import write_page
from proctor.report.server.served_pages import list_page
from proctor.runs.folder import RunFolder, write_run_file
from tests.refusals import refuses
from tests.run_folders import eight_episodes, write_run

BASE: dict[str, Any] = {"policy.type": "random", "env.type": "fake", "eval.n_episodes": 2}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which the command is refused."""
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("proctor: error: ")
    assert said.count("\n") == 1
    return said


def edit(file: Path, *place: str, value: Any) -> None:
    tree = json.loads(file.read_text())
    inner = tree
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file.write_text(json.dumps(tree))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", eight_episodes())


def test_an_error_that_quotes_control_codes_is_one_printable_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refusal(capsys, "report", "--a\n\x1b[2Jb=1")
    assert r"--a\n\x1b[2Jb" in said


def test_a_long_error_keeps_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "x" * 10_000)
    assert len(said) < 1200
    assert " ... " in said


def test_an_undecodable_path_is_no_traceback_on_a_strict_terminal(tmp_path: Path) -> None:
    folder = write_run(tmp_path / os.fsdecode(b"run\xff"), eight_episodes())
    done = subprocess.run(
        [sys.executable, "-m", "proctor.cli", "report", str(folder)],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("text", ["a\0b", "a\nb", "\x1b[2J", "a" * 300, "a/" * 3000, "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(text: str) -> None:
    with refuses(UsageError, "path.invalid") as refused:
        path_of(text, "--output_dir")
    assert "--output_dir" in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        "eval --policy.type=random --output_dir=",
        "eval --policy.type=random,zero --output_dir=",
        "eval --policy.type=random --resume --output_dir=",
        "eval --policy.type=random --record=",
        "eval --policy.type=random --against=",
        "eval --config_path=",
        "record --policy.type=random --dataset.root= --dataset.repo_id=a/b",
        "record --policy.type=random --resume --output_dir=",
        "train --policy.type=act --dataset.root=",
        "train --resume --output_dir=",
        "train-online --policy.type=gaussian_actor --dataset.root=",
        "report run --csv=",
        "report run --card=",
        "report run --output=",
        "compare run run --json=",
        "plan --width=0.1 --run=",
    ],
)
def test_an_empty_path_is_never_the_current_folder(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--output_dir=$UNSET`` would write a run into the current folder."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), eight_episodes())
    before = sorted(Path().rglob("*"))
    env = ["--env.type=fake"] if words.startswith(("eval", "record")) else []
    empty = next(word[:-1] for word in words.split() if word.endswith("="))
    assert f"{empty}: the path is empty" in refusal(capsys, *words.split(), *env)
    assert sorted(Path().rglob("*")) == before


def test_an_empty_argument_is_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert "RUN: the path is empty" in refusal(capsys, "report", "")


def test_an_empty_path_is_refused_in_python_too() -> None:
    for name in ("output_dir", "record"):
        with refuses(UsageError, "path.empty") as refused:
            proctor.evaluate("random", "fake", n_episodes=1, **{name: ""})
        assert name in str(refused.value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("eval.n_episodes", 10**12),
        ("eval.batch_size", 10**12),
        ("eval.max_retries", 10**12),
        ("eval.watchdog_s", float("inf")),
        ("seed", 10**30),
        ("video.height", 10**12),
        ("env.n_tasks", 10**12),
        ("env.image_size", 10**12),
        ("env.episode_length", 10**12),
        ("env.step_ms", float("nan")),
        ("env.task_ids", [10**30]),
        ("policy.n_action_steps", 10**12),
        ("policy.n_obs_steps", 10**12),
    ],
)
def test_a_number_that_would_take_all_memory_is_refused_before_it_does(
    flag: str, value: Any
) -> None:
    with pytest.raises(UsageError) as refused:
        prepare(build(EvalConfig, {**BASE, flag: value}))
    assert ("no task" if flag == "env.task_ids" else flag) in str(refused.value)


def test_many_tasks_with_many_episodes_are_refused_by_their_product() -> None:
    with refuses(UsageError, "run.too-many-episodes"):
        prepare(build(EvalConfig, {**BASE, "env.n_tasks": 1001, "eval.n_episodes": 1000}))


def test_observations_that_do_not_fit_into_memory_are_refused() -> None:
    large = {"env.image_size": 4096, "policy.inputs": ["observation.image"]}
    with refuses(UsageError, "system.too-little-memory"):
        prepare(build(EvalConfig, {**BASE, **large, "policy.n_obs_steps": 10_000}))


_CIRCLES = ["a: &a [*a]", "policy: &a {type: random, x: *a}", "policy: {type: &a {b: [*a]}}"]
_GROWTH = "\n".join(
    ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))]
)


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, "{a: " * 5000, "a: 2001-99-99", "<<: [1]", "\0"),
        *("!!python/object/apply:os.system ['touch it']", "policy: !include other.yaml"),
        *_CIRCLES,
        _GROWTH,
        "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 5000))]),
    ],
)
def test_a_config_file_that_breaks_yaml_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with refuses(UsageError, "config-file.invalid") as refused:
        read_config_file(file)
    assert "settings.yaml" in str(refused.value)


def test_a_config_file_that_never_ends_is_refused() -> None:
    with refuses(UsageError, "config-file.unreadable"):
        read_config_file(Path("/dev/zero"))


def test_a_config_file_cannot_name_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "settings.json"
    file.write_text('{"policy": {"type": "planted:PLUGIN"}, "env": {"type": "fake"}}')
    said = refusal(capsys, "eval", f"--config_path={file}")
    assert "if you trust it, add --policy.type=planted:PLUGIN" in said


@pytest.mark.parametrize("name", [":PLUGIN", ".a:b", "..:x", "a b:c", "json:", "a.:b"])
def test_a_type_that_is_no_name_of_code_is_refused(name: str) -> None:
    for part in ("policy", "env"):
        with refuses(UsageError, "plugin.invalid-name") as refused:
            build(EvalConfig, {**BASE, f"{part}.type": name})
        assert f"--{part}.type" in str(refused.value)


def test_a_factory_that_makes_no_policy_is_named() -> None:
    with refuses(UsageError, "plugin.not-a-policy") as refused:
        prepare(
            build(
                EvalConfig,
                {**BASE, "policy.type": "tests.unit.commands.test_hostile_input:nothing"},
            )
        )
    assert "NoneType" in str(refused.value)


def nothing(config: Any, benchmark: Any) -> None:
    """A factory that makes no policy."""


@pytest.mark.parametrize("command", [["audit"], ["eval", "--resume", "--output_dir"]])
def test_a_run_folder_cannot_name_code(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    (folder / "planted.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("policy.type", "env.type", "env.id"):
        edit(folder / "run.json", "config", "given", name, value="planted:PLUGIN")
        assert f"add --{name}=planted:PLUGIN" in refusal(capsys, *command, str(folder))
        edit(folder / "run.json", "config", "given", name, value="fake")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["sessions"], [1e300]),
        (["sessions"], "x"),
        (["protocol"], []),
        (["versions"], {"a": 1}),
        (["config", "given"], None),
        (["planned_episodes"], -1),
    ],
)
def test_a_run_json_of_other_types_is_damaged(folder: Path, place: list[str], value: Any) -> None:
    edit(folder / "run.json", *place, value=value)
    with refuses(RunFolderError, "run.damaged") as refused:
        RunFolder(folder).read()
    assert "run.json" in str(refused.value)


def test_a_run_json_as_deep_as_the_stack_is_damaged(folder: Path) -> None:
    (folder / "run.json").write_text("[" * 200_000)
    with refuses(RunFolderError, "run.damaged") as refused:
        RunFolder(folder).read()
    assert "run.json" in str(refused.value)


def test_a_protocol_without_sections_still_has_a_page_and_a_line_in_the_list(folder: Path) -> None:
    edit(folder / "run.json", "protocol", value={"policy": 3})
    edit(folder / "run.json", "config", "resolved", value={"policy": []})
    assert "a policy on a benchmark" in write_page(folder).read_text()
    assert "a policy on a benchmark" in list_page(folder.parent)


@pytest.mark.parametrize(
    "name", ["run.json", "episodes.jsonl", "sessions.jsonl", "videos/warnings.json"]
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with refuses(RunFolderError, "run.unreadable") as refused:
        write_page(folder)
    assert name in str(refused.value)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with refuses(RunFolderError, "run.unreadable") as refused:
        write_page(folder)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    "name", ["sessions.jsonl", "eval_info.json", "report.html", "videos/warnings.json"]
)
def test_a_folder_in_the_way_of_a_runs_file_is_refused_before_it_begins(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = run().path
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir(parents=True)
    more = ("--resume", f"--output_dir={path}", "--eval.n_episodes=9")
    assert str(path / name) in refusal(capsys, "eval", *more)


def test_a_damaged_list_of_warnings_is_said_before_the_run_goes_on(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    path = run().path
    (path / "videos").mkdir(exist_ok=True)
    (path / "videos/warnings.json").write_text("[")
    more = ("--resume", f"--output_dir={path}", "--eval.n_episodes=9")
    assert "warnings.json is damaged" in refusal(capsys, "eval", *more)


def test_a_file_in_the_way_of_the_videos_is_refused(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    path = run().path
    (path / "videos").write_text("")
    said = refusal(capsys, "eval", "--resume", f"--output_dir={path}")
    assert str(path / "videos") in said


@pytest.mark.parametrize("number", [float("inf"), float("nan"), [1.0, float("-inf")]])
def test_a_run_is_not_defined_by_what_no_run_json_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: Any
) -> None:
    """A checkpoint's config.json may say 1e999, which Python reads as infinity."""
    monkeypatch.setattr(RandomPolicy, "protocol", lambda self: {"config": {"scale": number}})
    settings = {"env": {"type": "fake"}, "policy": {"type": "random"}}
    config = build(EvalConfig, settings | {"output_dir": str(tmp_path / "run")})
    with refuses(UsageError, "run.not-finite") as refused:
        prepare(config).protocol()
    assert "policy.config.scale" in str(refused.value)


def test_half_a_character_is_refused_by_the_flag_that_holds_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refusal(capsys, "eval", "--policy.type=zero", "--env.type=fake", "--video.which=\ud800")
    assert "--video.which: '\\ud800'" in said


def test_a_page_is_never_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (folder / "report.html").symlink_to(outside)
    (folder / f".report.html.{os.getpid()}.part").symlink_to(outside)
    write_page(folder)
    assert outside.read_text() == "kept"
    assert not (folder / "report.html").is_symlink()


def test_a_folder_in_the_way_of_a_page_is_one_line(tmp_path: Path) -> None:
    (tmp_path / f".page.html.{os.getpid()}.part").mkdir()
    with refuses(RunFolderError, "disk.write-failed") as refused:
        write_run_file(tmp_path / "page.html", "x")
    assert "page.html" in str(refused.value)


@pytest.mark.parametrize("name", ["episodes.jsonl", "sessions.jsonl", ".lock", "videos"])
def test_a_run_with_links_in_it_is_not_resumed(
    run: Callable[..., Evaluation], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = run().path
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(tmp_path / "outside")
    said = refusal(capsys, "eval", "--resume", f"--output_dir={path}")
    assert f"{name} is a link" in said
    assert not (tmp_path / "outside").exists()


def test_numbers_in_a_journal_that_no_sum_can_hold_are_damaged_lines(folder: Path) -> None:
    journal = folder / "episodes.jsonl"
    lines = journal.read_text().splitlines()
    row = json.loads(lines[0])
    for key, value in (("steps", 10**30), ("sum_reward", 1e308), ("end_time", -1), ("seed", -5)):
        lines.append(json.dumps({**row, key: value, "episode_index": 50}))
    journal.write_text("\n".join([*lines, "[" * 100_000, ""]))
    assert '"damaged":[9,10,11,12,13]' in write_page(folder).read_text()


def test_names_that_read_like_markup_are_shown_as_they_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = folder / "episodes.jsonl"
    journal.write_text(journal.read_text().replace("point-0", r"[/bold]\u001b[2J"))
    shutil.copytree(folder, tmp_path / "other")
    assert cli.main(["compare", str(folder), str(tmp_path / "other")]) == 0
    said = capsys.readouterr().out
    assert r"[/bold]\x1b[2J" in said.replace("\n", "")
    assert "\x1b" not in said


def test_an_episode_that_was_never_planned_is_not_audited(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    journal = run().path / "episodes.jsonl"
    journal.write_text(journal.read_text().replace('"episode_index":3', '"episode_index":77'))
    said = refusal(capsys, "audit", str(journal.parent))
    assert "('point', 0, 77), which its run.json does not plan" in said


def test_against_a_run_that_does_not_say_what_it_ran(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "eval", "--policy.type=random", "--env.type=fake", f"--against={folder}")
    assert "run.json" in said


def test_a_port_or_a_count_of_five_thousand_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--port" in refusal(capsys, "view", str(tmp_path), f"--port={'9' * 5000}")
    assert "--port" in refusal(capsys, "view", str(tmp_path), "--port=²")
    assert "--episodes" in refusal(capsys, "audit", str(tmp_path), f"--episodes={'9' * 5000}")
