"""The content of a recording depends on its episodes only."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import PendingImage
from proctor.benchmarks.fake import FakeSim
from proctor.callbacks import appender
from proctor.callbacks.base import Callback
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset
from proctor.datasets.edit.operations import rename_feature, set_tasks
from proctor.datasets.format.info_file import read_info
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.staged_episode import StagedEpisodeWriter
from proctor.errors import PluginError, RunFolderError, UsageError
from proctor.evaluation.recording import RecordingInterrupted
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.runs.journal import read_journal
from proctor.types import EpisodeKey, EpisodeResult, Outcome, StepResult
from tests.recordings import columns, episodes_of, record, same
from tests.refusals import refuses

MakeRun = Callable[..., Evaluation]


class StopAfter(Callback):
    """Ends a session after so many episodes, as Ctrl-C would."""

    def __init__(self, episodes: int) -> None:
        self._left = episodes

    def on_episode_end(self, result: EpisodeResult) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording without interruption."""
    root = tmp_path_factory.mktemp("recorded") / "whole"
    record(root)
    return root


def journal(root: Path) -> list[Any]:
    return read_journal(root.with_name(f"{root.name}.recording")).rows


def test_the_numbers_are_the_same_whatever_the_number_of_workers(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"eval__use_async_envs": False},
        {"eval__batch_size": 1},
        {"eval__batch_size": 3},
    ]
    results = []
    for number, flags in enumerate(ways):
        recorded = record(tmp_path / str(number), record__noise=0.4, **flags)
        assert recorded.complete
        assert [task.kept for task in recorded.tasks] == [2, 2]
        results.append((columns(tmp_path / str(number)), recorded.tasks))
    assert sum(task.failed for task in results[0][1]) > 0  # or nothing is chosen
    for told, tasks in results[1:]:
        assert same(told, results[0][0])
        assert tasks == results[0][1]


def test_images_that_are_requested_ahead_belong_to_their_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {"record__images": True, "dataset__video": False, "eval__use_async_envs": False}
    record(tmp_path / "at once", **images)
    ahead = [0]

    def request_images(sim: FakeSim, keys: Sequence[str]) -> dict[str, PendingImage]:
        seen = {key: np.array(value) for key, value in sim.observe(keys).items()}
        ahead.append(ahead[-1] + 1)

        def collect(key: str) -> Array:
            ahead.append(ahead[-1] - 1)
            return seen[key]

        return {key: partial(collect, key) for key in keys}

    monkeypatch.setattr(FakeSim, "request_images", request_images, raising=False)
    record(tmp_path / "ahead", **images)
    assert max(ahead) > 1
    assert ahead[-1] == 0
    assert same(columns(tmp_path / "ahead"), columns(tmp_path / "at once"))


def test_a_frame_is_what_was_seen_before_its_action(tmp_path: Path) -> None:
    record(tmp_path / "d")
    for episode in episodes_of(tmp_path / "d"):
        seen, action = episode["observation.state"], episode["action"]
        assert np.allclose(seen[1:], seen[:-1] + 0.1 * action[:-1], atol=1e-6)
        assert list(episode["next.success"]) == [False] * (len(seen) - 1) + [True]
        distance = np.linalg.norm(np.diff(episode["observation.environment_state"][:, [0, 2]]))
        assert distance > 0
        assert (np.diff(episode["next.reward"]) > 0).all()
        assert list(episode["frame_index"]) == list(range(len(seen)))


def test_the_dataset_says_whose_it_is_and_how_fast(tmp_path: Path) -> None:
    record(tmp_path / "d", env__n_tasks=1, record__n_episodes=1, record__extra=[])
    info = read_info(tmp_path / "d")
    assert (info.fps, info.robot_type) == (10, "fake")
    assert list(info.features)[:2] == ["observation.state", "action"]
    assert {entry["dtype"] for entry in info.features.values()} == {"float32", "int64"}
    assert info.total_tasks == 1
    card = (tmp_path / "d" / "README.md").read_text()
    assert card.startswith("---\ntask_categories:\n- robotics\n")
    assert '"episode_length": 14' in card


def test_disturbed_actions_are_played_and_wanted_ones_recorded(tmp_path: Path) -> None:
    record(tmp_path / "d", record__noise=0.8, record__noise_share=0.5, env__episode_length=50)
    disturbed = []
    for episode in episodes_of(tmp_path / "d"):
        world = episode["observation.environment_state"].astype(np.float64)
        wanted = np.clip((world[:, 2:] - world[:, :2]) * 10, -1, 1)
        assert np.allclose(episode["action"], wanted, atol=1e-4)
        moved, stepped = np.diff(world[:, :2], axis=0), 0.1 * wanted[:-1]
        pushed = np.abs(moved - stepped).max(axis=1) > 1e-3
        assert not pushed[:10].any()
        assert np.abs(moved).max() <= 0.1 + 1e-6  # executed actions stay in the range
        disturbed.append(bool(pushed.any()))
    assert True in disturbed
    assert disturbed.count(False) >= len(disturbed) // 2


def test_only_some_numbers_of_an_action_are_disturbed(tmp_path: Path) -> None:
    noise = {"record__noise": 0.8, "record__noise_dims": [1]}
    record(tmp_path / "d", **noise, env__episode_length=50, seed=1000)
    for episode in episodes_of(tmp_path / "d"):
        x, y, *goal = episode["observation.environment_state"].T
        assert np.allclose(np.diff(x), 0.1 * np.clip((goal[0] - x)[:-1] * 10, -1, 1), atol=1e-6)
        free = 0.1 * np.clip((goal[1] - y)[:-1] * 10, -1, 1)
        assert np.allclose(np.diff(y)[:10], free[:10], atol=1e-6)
        assert len(y) < 12 or not np.allclose(np.diff(y), free, atol=1e-3)


def test_failures_are_kept_where_all_are_asked_for(tmp_path: Path) -> None:
    recorded = record(tmp_path / "d", record__keep="all", env__episode_length=6)
    assert [(task.kept, task.attempts) for task in recorded.tasks] == [(2, 2), (2, 2)]
    ends = [episode["next.success"][-1] for episode in episodes_of(tmp_path / "d")]
    outcomes = {row.key: row.outcome is Outcome.SUCCESS for row in journal(tmp_path / "d")}
    assert ends == [outcomes[key] for key in sorted(outcomes)]
    assert False in ends


def test_it_ends_at_the_bound_and_says_so(tmp_path: Path) -> None:
    recorded = record(tmp_path / "d", env__endless=True, record__max_attempts=4)
    assert not recorded.complete
    assert [(task.kept, task.attempts, task.failed) for task in recorded.tasks] == [(0, 4, 4)] * 2
    assert read_info(tmp_path / "d").total_episodes == 0


def test_a_higher_bound_goes_on_where_it_ended(tmp_path: Path) -> None:
    flags = {"env__episode_length": 8, "env__n_tasks": 1, "record__n_episodes": 2}
    few = record(tmp_path / "d", record__max_attempts=2, **flags)
    assert not few.complete
    more = record(tmp_path / "d", record__max_attempts=40, resume=True, **flags)
    assert more.complete
    assert len(episodes_of(tmp_path / "d")) == 2
    assert more.tasks[0].attempts == 2 + more.tasks[0].failed


@pytest.mark.parametrize("ended", [1, 3])
def test_a_recording_that_was_stopped_goes_on_to_the_same_numbers(
    tmp_path: Path, whole: Path, ended: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "d", StopAfter(ended))
    before = len(journal(tmp_path / "d"))
    assert before >= ended
    recorded = record(tmp_path / "d", resume=True)
    assert recorded.complete
    assert same(columns(tmp_path / "d"), columns(whole))
    assert len(journal(tmp_path / "d")) == len(journal(whole))
    assert not (tmp_path / "d.recording" / "takes").exists()
    again = record(tmp_path / "d", resume=True)
    assert again.tasks == recorded.tasks


class Played(Callback):
    """Lists the episodes that end."""

    def __init__(self) -> None:
        self.keys: list[EpisodeKey] = []

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.keys.append(result.spec.key)


def test_an_interrupted_recording_counts_finished_episodes_and_those_in_the_dataset(
    tmp_path: Path,
) -> None:
    flags = {"env__n_tasks": 6, "record__n_episodes": 2, "eval__batch_size": 3}
    with pytest.raises(RecordingInterrupted) as stopped:
        record(tmp_path / "d", StopAfter(9), **flags)
    counts, rows = stopped.value.counts, journal(tmp_path / "d")
    assert counts.total == sum(row.outcome is Outcome.SUCCESS for row in rows)
    assert counts.in_dataset == read_info(tmp_path / "d").total_episodes
    staged = list((tmp_path / "d.recording" / "takes").glob("*/*"))
    assert counts.total - counts.in_dataset == counts.staged <= len(staged)


def test_finished_episodes_of_all_tasks_are_not_played_again(tmp_path: Path) -> None:
    flags = {"env__n_tasks": 6, "record__n_episodes": 2, "eval__batch_size": 3}
    with pytest.raises(RecordingInterrupted):
        record(tmp_path / "d", StopAfter(9), **flags)
    before = {row.key for row in journal(tmp_path / "d")}
    assert len({key[1] for key in before}) > 1
    played = Played()
    assert record(tmp_path / "d", played, resume=True, **flags).complete
    assert not before & set(played.keys)
    record(tmp_path / "whole", **flags)
    assert same(columns(tmp_path / "d"), columns(tmp_path / "whole"))


def test_an_episode_on_its_way_into_the_dataset_is_not_lost(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = DatasetWriter.append_all, iter(range(100))

    def breaks_down(self: DatasetWriter, takes: Any) -> int:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return append(self, takes)

    with monkeypatch.context() as patched:
        patched.setattr(appender, "_MAX_EPISODES", 1)
        patched.setattr(DatasetWriter, "append_all", breaks_down)
        with pytest.raises(KeyboardInterrupt):
            record(tmp_path / "d")
    assert read_info(tmp_path / "d").total_episodes == 2
    record(tmp_path / "d", resume=True)
    assert same(columns(tmp_path / "d"), columns(whole))


def test_a_take_that_is_gone_is_played_again(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "d", StopAfter(4))
    shutil.rmtree(tmp_path / "d.recording" / "takes", ignore_errors=True)
    record(tmp_path / "d", resume=True)
    assert same(columns(tmp_path / "d"), columns(whole))


def test_a_simulator_that_broke_is_tried_again_and_leaves_no_frame(
    tmp_path: Path, whole: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    faults = {"0/0/3": "raise", "1/1/2": "kill", "1/0/1": "nan"}
    recorded = record(
        tmp_path / "d", env__faults=faults, env__break_once_in=str(marks), eval__batch_size=2
    )
    assert len(list(marks.iterdir())) == 3
    assert sum(task.errors for task in recorded.tasks) == 0
    assert same(columns(tmp_path / "d"), columns(whole))


def test_what_errs_for_good_is_no_demonstration_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    recorded = record(tmp_path / "d", env__faults={"0/0/2": "kill"}, env__n_tasks=1)
    (task,) = recorded.tasks
    assert (task.kept, task.errors) == (2, 1)
    assert ("point", 0, 0) in {row.key for row in journal(tmp_path / "d")}
    ledger = (tmp_path / "d.recording" / "recorded.jsonl").read_text().splitlines()
    assert ["point", 0, 0] not in [json.loads(line) for line in ledger]


@pytest.mark.parametrize("flag", ["dataset__root", "output_dir"])
def test_a_path_that_is_not_utf8_is_refused_before_anything_is_played(
    tmp_path: Path, flag: str
) -> None:
    odd = str(tmp_path / "q\udcff")
    with pytest.raises(UsageError) as refused:
        record(tmp_path / "d", **{flag: odd})
    assert "UTF-8" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_not_written_into_a_folder_of_other_files(
    whole: Path, tmp_path: Path, run: MakeRun
) -> None:
    dataset = Path(shutil.copytree(whole, tmp_path / "dataset"))
    before = contents(tmp_path)
    with refuses(UsageError, "run.foreign-content"):
        record(tmp_path / "d", output_dir=str(dataset))
    with refuses(UsageError, "run.foreign-content"):
        run(output_dir=str(dataset))
    assert contents(tmp_path) == before
    assert list(tmp_path.iterdir()) == [dataset]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/.run.json.12.part").touch()  # of a start that was killed
    (tmp_path / "begun/log.txt").touch()  # of the shell: proctor record ... > begun/log.txt
    assert record(tmp_path / "d", output_dir=str(tmp_path / "begun")).complete


@pytest.mark.parametrize("inside", ["", "run"])
def test_a_run_is_not_written_into_its_dataset(tmp_path: Path, inside: str, run: MakeRun) -> None:
    folder = str(tmp_path / "d" / inside)
    with refuses(UsageError, "path.overlap") as refused:
        record(tmp_path / "d", output_dir=folder)
    assert all(flag in str(refused.value) for flag in ("--output_dir", "--dataset.root"))
    with refuses(UsageError, "path.overlap") as refused:
        run(record=str(tmp_path / "d"), output_dir=folder)
    assert all(flag in str(refused.value) for flag in ("--output_dir", "--record"))
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_is_not_recorded_to_a_path_that_is_not_utf8(
    tmp_path: Path, run: MakeRun
) -> None:
    with pytest.raises(UsageError) as refused:
        run(policy__type="expert", record=str(tmp_path / "q\udcff"))
    assert "UTF-8" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_rendered_twice_and_nothing_else_is(tmp_path: Path) -> None:
    pictures = {"record__images": True, "dataset__codec": "h264", "env__image_size": 32}
    for name, flags in {
        "looks": {"policy__type": "random", "policy__inputs": ["observation.image"]},
        "does not": {},
    }.items():
        record(
            tmp_path / name,
            record__keep="all",
            record__n_episodes=1,
            env__n_tasks=1,
            **{**pictures, **flags},
        )
        (row,) = journal(tmp_path / name)
        assert row.renders == row.steps
    record(tmp_path / "numbers", record__n_episodes=1)
    assert {row.renders for row in journal(tmp_path / "numbers")} == {0}


def test_recording_changes_no_episode(tmp_path: Path, run: MakeRun) -> None:
    played = {"policy__type": "random", "policy__n_action_steps": 3}
    record(tmp_path / "d", **played, record__keep="all", seed=1000)
    plain = run(
        env__n_tasks=2, env__episode_length=14, policy__n_action_steps=3, eval__n_episodes=2
    )
    digests = {row.key: row.digest for row in plain.rows}
    assert {row.key: row.digest for row in journal(tmp_path / "d")} == digests


def test_a_full_disk_is_nobodys_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: StagedEpisodeWriter, frame: Any, task: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StagedEpisodeWriter, "add_frame", full)
        with pytest.raises(RunFolderError) as refused:
            record(tmp_path / "d", eval__use_async_envs=False)
        assert "No space left on device" in str(refused.value)
        assert "--resume" in str(refused.value)
    assert journal(tmp_path / "d") == []
    assert record(tmp_path / "d", resume=True).complete


def test_an_unknown_success_is_never_written_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plug-in's steps report no success, though the benchmark declares that they do."""
    known = FakeSim.step

    def unknown(sim: FakeSim, action: Array) -> StepResult:
        return replace(known(sim, action), success=None)

    monkeypatch.setattr(FakeSim, "step", unknown)
    with refuses(PluginError, "plugin.without-success") as refused:
        record(tmp_path / "demos", eval__use_async_envs=False, record__keep="all")
    assert "next.success" in str(refused.value)
    assert not list((tmp_path / "demos").rglob("*.parquet"))


def test_rollouts_of_an_evaluation_are_kept_in_its_order(tmp_path: Path, run: MakeRun) -> None:
    flags = {"env__n_tasks": 2, "env__episode_length": 9, "policy__type": "expert"}
    kept = []
    for workers in (1, 3):
        root = tmp_path / f"rollouts{workers}"
        evaluation = run(record=str(root), record_images=False, eval__batch_size=workers, **flags)
        assert evaluation.rollouts == root
        assert read_info(root).total_episodes == len(evaluation.rows) == 8
        ends = [bool(e["next.success"][-1]) for e in episodes_of(root)]
        assert ends == [row.outcome is Outcome.SUCCESS for row in evaluation.rows]
        assert False in ends
        kept.append(columns(root))
    assert same(*kept)
    plain = run(**flags)
    assert [row.digest for row in plain.rows] == [row.digest for row in evaluation.rows]


def test_rollouts_go_on_with_the_evaluation(tmp_path: Path, run: MakeRun) -> None:
    flags = {"record_images": False, "output_dir": str(tmp_path / "run")}
    run(record=str(tmp_path / "r"), eval__episodes=[0, 2], **flags)
    run(record=str(tmp_path / "r"), resume=True, **flags)
    assert read_info(tmp_path / "r").total_episodes == 4
    run(resume=True, eval__n_episodes=5, output_dir=str(tmp_path / "run"))
    with refuses(UsageError, "run.not-recorded"):
        run(record=str(tmp_path / "r"), resume=True, eval__n_episodes=6, **flags)


def test_an_evaluation_that_stops_itself_keeps_what_it_ran(tmp_path: Path, run: MakeRun) -> None:
    evaluation = run(
        policy__type="expert",
        record=str(tmp_path / "r"),
        record_images=False,
        eval__n_episodes=60,
        eval__stop_when="ci_width<0.5",
    )
    assert evaluation.stopped is not None
    assert read_info(tmp_path / "r").total_episodes == len(evaluation.rows) < 60


def test_pictures_can_be_kept_without_loss_instead_of_as_videos(tmp_path: Path) -> None:
    flags = {"record__images": True, "record__n_episodes": 1, "env__image_size": 32}
    for name, video in (("png", False), ("mp4", None)):
        record(tmp_path / name, **flags, dataset__video=video, dataset__codec="h264")
    info = read_info(tmp_path / "png")
    assert info.features["observation.image"]["dtype"] == "image"
    assert not list((tmp_path / "png").rglob("*.mp4"))
    kept, lossy = (open_dataset(str(tmp_path / name)) for name in ("png", "mp4"))
    pictures = kept.batch(range(4))["observation.image"]
    assert pictures.shape == (4, 32, 32, 3)
    assert not np.array_equal(pictures, lossy.batch(range(4))["observation.image"])
    np.testing.assert_allclose(pictures, lossy.batch(range(4))["observation.image"], atol=90)


@pytest.mark.parametrize(
    ("change", "datum"),
    [
        (lambda source: rename_feature(source, "next.reward", "reward"), "next.reward"),
        (lambda source: set_tasks(source, {0: "push the cup"}), "push the cup"),
    ],
    ids=["feature", "task"],
)
def test_a_dataset_that_was_edited_since_is_refused_and_nobody_fails_for_it(
    change: Callable[[SourceDataset], EditPlan], datum: str, tmp_path: Path
) -> None:
    root, few = tmp_path / "d", {"env__n_tasks": 1, "record__n_episodes": 1}
    record(root, **few)
    before = journal(root)
    edit(root, in_place_destination(root), change)
    with refuses(UsageError, "dataset.changed") as refused:
        record(root, resume=True, **few | {"record__n_episodes": 2})
    assert datum in str(refused.value)
    assert journal(root) == before
