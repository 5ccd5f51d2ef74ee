from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.errors import FolderInUse, RunFolderError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JOURNAL_FILE, read_journal, videos_in
from proctor.types import Outcome
from tests.conftest import digests
from tests.refusals import refuses
from tests.run_folders import episode, write_run


def test_the_run_folder_tells_everything_about_the_run(run: Callable[..., Evaluation]) -> None:
    evaluation = run(env__n_tasks=2)
    content = json.loads((evaluation.path / "run.json").read_text())
    assert content["config"]["given"]["env.n_tasks"] == 2
    assert content["config"]["resolved"]["eval"]["watchdog_s"] == 120.0
    assert content["protocol"]["benchmark"]["horizon"] == 50
    assert content["protocol"]["policy"]["replan_steps"] == 1
    assert {"python", "proctor", "numpy"} <= content["versions"].keys()
    assert len(content["fingerprint"]) == 16
    assert {"platform", "usable_cores", "git_commit"} <= content["machine"].keys()
    assert content["bit_reproducible"] is True
    assert content["format"] == 1


def test_the_journal_has_one_line_per_episode_with_every_field(
    run: Callable[..., Evaluation],
) -> None:
    evaluation = run()
    lines = (evaluation.path / JOURNAL_FILE).read_text().splitlines()
    assert len(lines) == 4
    assert " ".join(json.loads(lines[0])) == (
        "suite task task_id episode_index seed outcome success_once success_at_end steps "
        "sum_reward max_reward start_time end_time worker attempts renders clipped_steps open_s "
        "sim_s render_s wait_s digest error init_state world steps_to_success scores "
        "judge_probability judge_success start clean_task format"
    )


def test_a_journal_from_before_worlds_has_those_of_its_init_states_or_seeds(tmp_path: Path) -> None:
    rows = [episode(0, index, Outcome.SUCCESS) for index in range(3)]
    rows[1].init_state = 1
    path = write_run(tmp_path, rows) / JOURNAL_FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["world"]
    lines[2]["world"] = "the red one"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    worlds = [row.world for row in read_journal(tmp_path).rows]
    assert worlds == ["seed 1000", "init 1", "the red one"]


def test_eval_info_has_lerobots_shape_and_ours_beside_it(run: Callable[..., Evaluation]) -> None:
    evaluation = run(policy__type="expert", env__n_tasks=2, env__faults={"1/3/0": "raise"})
    info = json.loads((evaluation.path / "eval_info.json").read_text())
    assert set(info) == {"per_task", "per_group", "overall", "proctor"}
    first, second = info["per_task"]
    assert (first["task_group"], first["task_id"]) == ("point", 0)
    assert first["metrics"]["successes"] == [True] * 4
    assert second["metrics"]["n_episodes"] == 3
    assert second["metrics"]["n_errors"] == 1
    overall = info["overall"]
    assert overall["pc_success"] == 100.0
    assert overall["n_episodes"] == 7
    assert overall["eval_s"] > 0
    assert overall["eval_ep_s"] == pytest.approx(overall["eval_s"] / 8)
    assert info["per_group"]["point"]["avg_sum_reward"] == pytest.approx(overall["avg_sum_reward"])
    assert info["proctor"]["complete"] is True
    assert info["proctor"]["stopped"] is None
    assert info["proctor"]["micro"] == info["proctor"]["macro"] == {"rate": 1.0, "stderr": 0.0}


def test_nothing_measured_is_null_never_zero(run: Callable[..., Evaluation]) -> None:
    evaluation = run(eval__n_episodes=1, env__faults={"0/0/0": "raise"}, eval__max_retries=0)
    info = json.loads((evaluation.path / "eval_info.json").read_text())
    assert info["overall"]["pc_success"] is None
    assert info["overall"]["avg_sum_reward"] is None
    assert str(evaluation.tally) == "n/a, 1 error"


def test_a_folder_that_holds_a_run_is_refused_without_resume(
    run: Callable[..., Evaluation],
) -> None:
    path = run().path
    with refuses(UsageError, "run.exists") as refused:
        run(output_dir=str(path))
    assert "--resume" in str(refused.value)


def test_resume_needs_a_run(run: Callable[..., Evaluation], tmp_path: Path) -> None:
    with refuses(UsageError, "run.not-found"):
        run(output_dir=str(tmp_path / "none"), resume=True)


def test_resume_runs_exactly_the_missing_episodes(run: Callable[..., Evaluation]) -> None:
    first = run(env__n_tasks=2)
    journal = first.path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed while it wrote the fourth
    second = run(env__n_tasks=2, output_dir=str(first.path), resume=True)
    assert digests(second) == digests(first)
    kept = journal.read_bytes().splitlines(keepends=True)
    assert kept[:3] == lines[:3]
    assert len(kept) == 8


def test_a_damaged_line_in_the_middle_costs_that_episode_only(
    run: Callable[..., Evaluation],
) -> None:
    first = run()
    journal = first.path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"\0\0\xff{\n" + b"".join(lines[2:]))
    assert read_journal(first.path).damaged == [2]
    second = run(output_dir=str(first.path), resume=True)
    assert digests(second) == digests(first)


def test_resume_tries_errored_episodes_again_and_the_later_line_wins(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    flags = {
        "policy__type": "expert",
        "env__faults": {"0/1/0": "raise", "0/2/0": "raise"},
        "env__break_once_in": str(marks),
        "eval__max_retries": 0,
    }
    first = run(**flags)
    assert first.tally.errors == 2
    (marks / next(mark.name for mark in marks.iterdir())).unlink()  # that one breaks once more
    again = {**flags, "output_dir": str(first.path), "resume": True}
    second = run(**again)
    assert (second.tally.errors, len(second.rows)) == (1, 4)
    third = run(**again)
    assert (third.tally.errors, len(third.rows)) == (0, 4)
    assert sorted(row.attempts for row in third.rows) == [1, 1, 2, 3], "of all sessions together"
    lines = (first.path / JOURNAL_FILE).read_text().splitlines()
    assert len(lines) == 7, "4 at first, then 2 and 1 that were tried again"
    assert json.loads((first.path / "eval_info.json").read_text())["overall"]["n_errors"] == 0


def test_a_result_is_never_superseded_by_a_later_line(tmp_path: Path) -> None:
    won, lost, broke = Outcome.SUCCESS, Outcome.FAILURE, Outcome.ERROR
    lines = [(0, won), (0, broke), (0, lost), (1, broke), (1, lost), (1, won)]
    write_run(tmp_path / "run", [episode(0, index, ended) for index, ended in lines])
    rows = read_journal(tmp_path / "run").rows
    assert [(row.outcome, row.attempts) for row in rows] == [(won, 1), (lost, 4)]


def test_resume_with_more_episodes_extends_the_run(run: Callable[..., Evaluation]) -> None:
    path = run(eval__n_episodes=2).path
    longer = run(eval__n_episodes=5, output_dir=str(path), resume=True)
    assert digests(longer) == digests(run(eval__n_episodes=5))


def test_resume_with_fewer_episodes_than_there_are_is_refused(
    run: Callable[..., Evaluation],
) -> None:
    path = run(eval__n_episodes=3).path
    with pytest.raises(UsageError) as refused:
        run(eval__n_episodes=2, output_dir=str(path), resume=True)
    assert "holds 1 episodes" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 7}, "seed was 1000, now 7"),
        ({"env__episode_length": 9}, "benchmark.horizon was 50, now 9"),
        ({"policy__n_action_steps": 2}, "policy.replan_steps was 1, now 2"),
        ({"policy__type": "zero"}, "policy.type was 'random', now 'zero'"),
    ],
)
def test_resume_refuses_a_run_with_other_episodes_and_says_which_field(
    run: Callable[..., Evaluation], change: dict[str, object], field: str
) -> None:
    path = run().path
    with refuses(UsageError, "run.definition-changed") as refused:
        run(output_dir=str(path), resume=True, **change)
    assert field in str(refused.value)


@pytest.mark.parametrize(
    "change", [{"eval__batch_size": 3}, {"eval__scheduler": "lockstep"}, {"env__step_ms": 0.1}]
)
def test_how_episodes_are_run_is_no_part_of_the_fingerprint(
    run: Callable[..., Evaluation], change: dict[str, object]
) -> None:
    path = run().path
    assert run(output_dir=str(path), resume=True, **change).complete


def test_a_run_from_before_a_setting_existed_goes_on_where_it_is_left_alone(
    run: Callable[..., Evaluation],
) -> None:
    path = run().path
    content = json.loads((path / "run.json").read_text())
    content["protocol"]["benchmark"]["config"]["of_tomorrow"] = None
    (path / "run.json").write_text(json.dumps(content))
    assert run(output_dir=str(path), resume=True, eval__n_episodes=5).complete
    content["protocol"]["benchmark"]["config"]["of_tomorrow"] = 0
    (path / "run.json").write_text(json.dumps(content))
    with refuses(UsageError, "run.definition-changed") as refused:
        run(output_dir=str(path), resume=True, eval__n_episodes=6)
    assert "of_tomorrow" in str(refused.value)


def test_a_second_process_on_the_same_folder_is_refused(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    path = tmp_path / "shared"
    with RunFolder(path).locked(), refuses(FolderInUse, "run.in-use"):
        run(output_dir=str(path))


def test_an_unwritable_folder_is_one_line_before_anything_starts(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError, "disk.not-writable"):
        run(output_dir=str(tmp_path / "file" / "run"))


def test_a_file_is_no_run_folder_and_stays_as_it_is(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    with refuses(RunFolderError, "disk.not-writable"):
        run(output_dir=str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "kept"


def test_a_disk_that_fills_up_is_one_line_and_leaves_whole_lines_only(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: write() fails half-way too."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "sys.dont_write_bytecode = True\n"  # or half a .pyc would stay behind
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (4000, {resource.RLIM_INFINITY}))\n"
        "from proctor.cli import main\n"
        "sys.exit(main(['eval', '--policy.type=zero', '--env.type=fake', '--eval.n_episodes=50',\n"
        f"  '--eval.batch_size=1', '--output_dir={tmp_path / 'run'}']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("proctor: error: cannot write")
    assert "File too large" in last
    assert "--resume" in last
    rows = read_journal(tmp_path / "run")
    assert 0 < len(rows.rows) < 50
    assert rows.damaged == []
    assert (tmp_path / "run" / JOURNAL_FILE).read_bytes().endswith(b"\n")


def test_a_damaged_run_file_is_one_line(run: Callable[..., Evaluation]) -> None:
    path = run().path
    (path / "run.json").write_text('{"config": 3')
    with refuses(RunFolderError, "run.damaged") as refused:
        run(output_dir=str(path), resume=True)
    assert "run.json" in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_is_refused_before_anything_starts(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)])
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with refuses(RunFolderError, "disk.full"):
            run(output_dir=str(small / "run"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_reading_a_long_journal_takes_one_copy_of_it_beside_its_episodes(tmp_path: Path) -> None:
    write_run(tmp_path, [episode(0, index, Outcome.SUCCESS) for index in range(5_000)])
    size = (tmp_path / JOURNAL_FILE).stat().st_size
    tracemalloc.start()
    try:
        rows = read_journal(tmp_path).rows
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == 5_000
    assert peak - kept < 1.5 * size


def test_the_videos_of_a_run_are_found_in_one_look(tmp_path: Path) -> None:
    rows = [episode(0, 0, Outcome.SUCCESS), episode(1, 2, Outcome.FAILURE)]
    assert videos_in(tmp_path) == frozenset()
    for row in rows:
        video = tmp_path / row.video
        video.parent.mkdir(parents=True)
        video.touch()
    (tmp_path / rows[0].video).with_suffix(".mp4.part").touch()  # being written
    assert videos_in(tmp_path) == {row.video for row in rows}
