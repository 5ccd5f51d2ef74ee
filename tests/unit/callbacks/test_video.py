"""Videos: which episodes are chosen, the files' content, and that videos change no result."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.callbacks.progress import VideoProgress
from proctor.callbacks.video import VideoFile, VideoOptions, default_frame_interval, side_by_side
from proctor.config.sections.evaluation import VideoSelection, VideoSettings
from proctor.engine.worker.video_sim import VideoSim
from proctor.errors import MissingExtra, NoGraphics, UsageError
from proctor.evaluation import video_replay
from proctor.evaluation.run import Evaluation
from proctor.evaluation.video_replay import ActionHistory
from proctor.features import Array, Observation
from proctor.policies.base import Batch, PolicyPlugin
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JOURNAL_FILE, read_journal
from proctor.runs.records import RunProgress
from proctor.runs.videos import WARNINGS_FILE, read_video_warnings
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, Task
from tests.conftest import digests
from tests.refusals import refuses

av = pytest.importorskip("av", reason="PyAV is not installed (proctor[video])")
Run = Callable[..., Evaluation]


def videos(evaluation: Evaluation) -> set[str]:
    """The videos in the run's video folder, finished or not, without the values beside them."""
    folder = evaluation.path / "videos"
    found = (path for path in folder.glob("*/*") if path.suffix != ".json")
    return {str(path.relative_to(folder)) for path in found}


def frames(path: Path) -> list[Array]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_the_video_is_h264_at_the_cameras_size_and_simulation_speed(run: Run) -> None:
    evaluation = run(video__episodes=1, env__endless=True, env__image_size=32)
    path = evaluation.path / "videos/point_0/episode_0.mp4"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.height, stream.width, stream.average_rate) == (32, 32, 10)
    assert len(frames(path)) == 51  # the start and all 50 steps


def test_size_frame_rate_and_interval_can_be_chosen(run: Run) -> None:
    evaluation = run(
        video__episodes=1, env__endless=True, video__height=40, video__width=63,
        video__fps=2.5, video__every=20,
    )  # fmt: skip
    path = evaluation.path / "videos/point_0/episode_0.mp4"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.height, stream.width) == (40, 64)
        assert float(stream.average_rate) == 2.5
    assert len(frames(path)) == 4  # the start, steps 20 and 40, the end


def test_video_frames_are_the_policys_images(run: Run) -> None:
    evaluation = run(video__episodes=1, env__endless=True, policy__inputs="observation.image")
    sim = Fake(FakeConfig(endless=True)).make_sim(Fake(FakeConfig()).tasks()[0])
    sim.reset(Fake(FakeConfig()).spec(Fake(FakeConfig()).tasks()[0], 0, 1000))
    first = frames(evaluation.path / "videos/point_0/episode_0.mp4")[0]
    expected = sim.observe(["observation.image"])["observation.image"]
    assert np.abs(first.astype(int) - expected).max() <= 4  # H.264 is lossy


@pytest.mark.parametrize("parallel", [{"eval__batch_size": 1}, {}, {"eval__use_async_envs": False}])
@pytest.mark.parametrize("policy", ["random", "zero"])
def test_failures_get_videos_and_successes_do_not(
    run: Run, parallel: dict[str, Any], policy: str
) -> None:
    evaluation = run(
        video__episodes=2, env__n_tasks=2, eval__n_episodes=6, policy__type=policy, **parallel
    )
    failed = [row for row in evaluation.rows if row.outcome is Outcome.FAILURE]
    seen: Counter[int] = Counter()
    expected = set()
    for row in failed:
        seen[row.task_id] += 1
        if seen[row.task_id] <= 2:
            expected.add(row.video.removeprefix("videos/"))
    assert videos(evaluation) == expected
    assert evaluation.filmed.videos == len(expected)
    assert evaluation.filmed.warnings == []


def test_a_run_with_the_policy_in_workers_gets_videos(run: Run) -> None:
    evaluation = run(video__episodes=1, video__which="first", policy__type="expert")
    assert videos(evaluation) == {"point_0/episode_0.mp4"}
    assert evaluation.rows[0].steps is not None
    path = evaluation.path / evaluation.rows[0].video
    assert len(frames(path)) == 1 + evaluation.rows[0].steps


def test_eval_info_has_the_paths_of_the_videos(run: Run) -> None:
    evaluation = run(video__episodes=1, video__which="first", env__n_tasks=2)
    info = json.loads((evaluation.path / "eval_info.json").read_text())
    paths = ["videos/point_0/episode_0.mp4", "videos/point_1/episode_0.mp4"]
    assert [task["metrics"]["video_paths"] for task in info["per_task"]] == [paths[:1], paths[1:]]
    assert info["per_group"]["point"]["video_paths"] == info["overall"]["video_paths"] == paths
    assert all((evaluation.path / path).is_file() for path in paths)


def test_all_gives_every_episode_a_video_and_none_gives_no_videos(run: Run) -> None:
    assert len(videos(run(video__which="all"))) == 0  # the fixture asks for no videos
    assert len(videos(run(video__episodes=1, video__which="all", env__n_tasks=2))) == 8


def test_videos_change_no_episode_and_no_render_count(run: Run) -> None:
    load = {"policy__inputs": "observation.image", "policy__n_action_steps": 3}
    without, with_videos = run(**load), run(**load, video__episodes=1, video__which="all")
    assert digests(with_videos) == digests(without)
    assert [row.renders for row in with_videos.rows] == [row.renders for row in without.rows]
    records = [RunFolder(evaluation.path).read() for evaluation in (without, with_videos)]
    assert len({record.fingerprint for record in records if record is not None}) == 1


class CountingSim(FakeSim):
    images = 0

    def observe(self, keys: Sequence[str]) -> Observation:
        self.images += "observation.image" in keys
        return super().observe(keys)


def test_a_video_sim_renders_every_nth_step_and_nothing_twice(tmp_path: Path) -> None:
    task = Fake(FakeConfig()).tasks()[0]
    inner = CountingSim(FakeConfig(endless=True), task)
    sim = VideoSim(inner, VideoOptions(tmp_path, ("observation.image",), every=10))
    sim.reset(EpisodeSpec(task, 0, 1))
    for step in range(1, 51):
        sim.step(np.zeros(2))
        sim.observe(["observation.state"])
        if step % 5 == 0:  # the policy looks here, half of the time at what was filmed
            sim.observe(["observation.image", "observation.state"])
    assert inner.images == 1 + 50 // 5


@pytest.mark.parametrize(
    ("task_fps", "policy_image_interval", "expected"),
    [(80, 10, 10), (20, 10, 2), (80, 100, 10), (80, 1, 1), (10, 3, 1), (80, 0, 10), (80, 13, 10)],
)
def test_frames_match_the_policys_images_at_eight_or_more_per_second(
    task_fps: int, policy_image_interval: int, expected: int
) -> None:
    assert default_frame_interval(task_fps, policy_image_interval) == expected


def test_a_video_keeps_images_whose_buffer_is_used_again(tmp_path: Path) -> None:
    video = VideoFile(tmp_path / "v.mp4", VideoOptions(tmp_path, ("image",)), 10)
    buffer = np.zeros((32, 32, 3), np.uint8)
    for step in range(20):
        buffer[:] = 10 * step
        video.add(buffer)
    video.finish()
    shown = [int(frame.mean()) for frame in frames(tmp_path / "v.mp4")]
    np.testing.assert_allclose(shown, [10 * step for step in range(20)], atol=3)


def test_an_error_of_the_encoder_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    video = VideoFile(tmp_path / "file" / "v.mp4", VideoOptions(tmp_path, ("image",)), 10)
    video.add(np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(FileExistsError):
        video.finish()
    video.abandon()


def test_several_cameras_are_shown_side_by_side() -> None:
    left, right = np.full((4, 6, 3), 1, np.uint8), np.full((2, 3, 3), 2, np.uint8)
    joined = side_by_side([left, right])
    assert joined.shape == (4, 9, 3)
    assert (joined[:, :6] == 1).all()
    assert (joined[:2, 6:] == 2).all()
    assert (joined[2:, 6:] == 0).all()


class ForgetfulPolicy(RandomPolicy):
    """Breaks the rule that an episode depends on its spec: fails at first, then succeeds or not."""

    def __init__(self, *args: Any, again: str) -> None:
        super().__init__(*args)
        self._begun: Counter[Any] = Counter()
        self._again = again

    def new_episode(self, spec: EpisodeSpec) -> Any:
        self._begun[spec.key] += 1
        return spec.key

    def act(self, batch: Batch) -> Array:
        actions = np.zeros((len(batch.queries), 1, 2))
        for row, query in enumerate(batch.queries):
            if self._begun[query.state] > 1:
                actions[row, 0] = self._act_again(batch.observations, row, query.step)
        return actions

    def _act_again(self, observations: Observation, row: int, step: int) -> Any:
        if self._again == "kill" and step == 5 and not self._begun["killed"]:
            self._begun["killed"] += 1
            for process in multiprocessing.active_children():
                process.kill()
        if self._again == "succeed":
            state = observations["observation.environment_state"][row, -1]
            return np.clip((state[2:] - state[:2]) * 10, -1, 1)
        return 0.5 if self._again == "wander" else 0.0


def _plugin(again: str) -> PolicyPlugin:
    return PolicyPlugin(RandomConfig, lambda *args: ForgetfulPolicy(*args, again=again), "forgets")


SUCCEEDS, WANDERS, KILLS = _plugin("succeed"), _plugin("wander"), _plugin("kill")
FORGETFUL = {"video__episodes": 1, "policy__inputs": "observation.environment_state"}


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody remembers what was played, as when a run is resumed: the policy plays it again."""
    monkeypatch.setattr(ActionHistory, "on_episode_end", lambda *_: None)


def test_videos_replay_the_recorded_actions_not_the_policy(run: Run) -> None:
    evaluation = run(**FORGETFUL, policy__type=f"{__name__}:SUCCEEDS")
    assert evaluation.filmed.warnings == []
    assert videos(evaluation) == {"point_0/episode_0.mp4"}


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (VideoSelection.FAILURES, {1, 3}),
        (VideoSelection.FIRST, {0, 1}),
        (VideoSelection.ALL, {0, 1, 3, 4}),
    ],
)
def test_only_actions_of_episodes_that_get_a_video_are_kept(
    which: VideoSelection, expected: set[int]
) -> None:
    remembered = ActionHistory(VideoSettings(episodes=2, which=which))
    task = Fake(FakeConfig()).tasks()[0]
    for index in (4, 1, 0, 3, 2):
        failed = Outcome.FAILURE if index else Outcome.SUCCESS
        outcome = Outcome.ERROR if index == 2 else failed
        actions = None if index == 2 else np.full((5, 2), index, np.float32)
        remembered.on_episode_end(
            EpisodeResult(EpisodeSpec(task, index, index), outcome, actions=actions)
        )
    assert {key[2] for key in remembered.actions} == expected
    assert all((actions == key[2]).all() for key, actions in remembered.actions.items())


def test_actions_beyond_the_memory_limit_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(video_replay, "_MOST_BYTES", 100)
    remembered = ActionHistory(VideoSettings(episodes=2, which=VideoSelection.ALL))
    task = Fake(FakeConfig()).tasks()[0]
    for index in range(5):
        actions = np.zeros((5, 2), np.float32)
        spec = EpisodeSpec(task, index, index)
        remembered.on_episode_end(EpisodeResult(spec, Outcome.FAILURE, actions=actions))
    assert [key[2] for key in remembered.actions] == [0, 1]


@pytest.mark.usefixtures("forgotten")
def test_a_replay_with_another_outcome_is_warned_of_and_its_video_removed(run: Run) -> None:
    evaluation = run(**FORGETFUL, policy__type=f"{__name__}:SUCCEEDS")
    (warning,) = evaluation.filmed.warnings
    assert warning.startswith("point-0 episode 0 (seed 1000) came out differently for the camera")
    assert "its video is removed" in warning
    assert videos(evaluation) == set()
    assert {row.outcome for row in evaluation.rows} == {Outcome.FAILURE}


@pytest.mark.usefixtures("forgotten")
def test_a_replay_with_another_digest_is_warned_of(run: Run) -> None:
    evaluation = run(**FORGETFUL, policy__type=f"{__name__}:WANDERS")
    (warning,) = evaluation.filmed.warnings
    assert "digest" in warning
    assert "its video is kept" in warning


@pytest.mark.usefixtures("forgotten")
def test_the_page_keeps_the_warning_until_the_episode_has_a_new_video(run: Run) -> None:
    first = run(**FORGETFUL, policy__type=f"{__name__}:WANDERS")
    assert page_data(load_run(first.path))["film_warnings"] == first.filmed.warnings
    other = run(video__episodes=1, env__endless=True)
    made, kept = "videos/point_0/episode_0.mp4", "videos/point_0/episode_1.mp4"
    (other.path / WARNINGS_FILE).write_text(json.dumps({made: "an old one", kept: "another"}))
    (other.path / made).unlink()
    again = run(output_dir=str(other.path), resume=True, video__episodes=1, env__endless=True)
    assert again.filmed.warnings == []
    assert read_video_warnings(other.path) == {kept: "another"}


def test_the_replay_reuses_open_simulators(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    make_sim = Fake.make_sim

    def counted(self: Fake, task: Task) -> FakeSim:
        opened.append(task)
        return make_sim(self, task)

    monkeypatch.setattr(Fake, "make_sim", counted)
    alone = {"eval__batch_size": 1, "eval__use_async_envs": False}
    evaluation = run(video__episodes=2, env__endless=True, **alone)
    assert evaluation.filmed.videos == 2
    assert len(opened) == 1


def test_the_progress_line_counts_videos() -> None:
    said = io.StringIO()
    progress = VideoProgress(3, Console(file=said))
    assert progress.line() == "filming 0/3  starting"
    fake = Fake(FakeConfig())
    done = EpisodeResult(fake.spec(fake.tasks()[0], 0, 1000), Outcome.FAILURE)
    progress.on_episode_end(done)
    progress.on_progress(RunProgress(elapsed_s=4.0, steps=50, batches=0, batched_requests=0))
    assert progress.line() == "filming 1/3  0:08 left"
    progress.close()
    assert said.getvalue() == "filming 1/3  0:08 left\n"


@pytest.mark.usefixtures("forgotten")
def test_a_worker_killed_during_a_replay_is_replaced_and_its_video_made(run: Run) -> None:
    evaluation = run(**FORGETFUL, policy__type=f"{__name__}:KILLS")
    assert evaluation.filmed.warnings == []
    assert videos(evaluation) == {"point_0/episode_0.mp4"}
    assert len(frames(evaluation.path / "videos/point_0/episode_0.mp4")) == 51


def test_a_replay_that_keeps_failing_costs_only_the_video(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(self: VideoFile, picture: Array) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(VideoFile, "add", add)
    evaluation = run(video__episodes=1, env__endless=True, eval__use_async_envs=False)
    (warning,) = evaluation.filmed.warnings
    said = "point-0 episode 0 (seed 1000) could not be filmed: OSError: no space left ("
    assert warning.startswith(said)
    assert videos(evaluation) == set()
    assert len(evaluation.rows) == 4


def test_a_run_killed_during_replays_lost_nothing_and_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "proctor.cli", "eval", "--policy.type=random", "--env.type=fake",
        "--env.endless=true", "--env.step_ms=10", "--eval.n_episodes=2", "--eval.batch_size=2",
        "--video.episodes=2", f"--output_dir={folder}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(folder.glob("videos/*/*.part")):
        assert time.monotonic() < deadline, "nothing was filmed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    journal = (folder / JOURNAL_FILE).read_bytes()
    assert len(read_journal(folder).rows) == 2
    assert not list(folder.glob("videos/*/*.mp4"))
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, timeout=60, check=True
    )
    assert (folder / JOURNAL_FILE).read_bytes() == journal
    assert "filming 2/2  done in " in done.stderr
    assert f"videos: 2 in {folder / 'videos'}\n" in done.stdout
    made = {path.name for path in folder.glob("videos/*/*")}
    assert made == {f"episode_{n}.{kind}" for n in (0, 1) for kind in ("mp4", "json")}
    assert "episode_1.mp4" in (folder / "report.html").read_text()


def test_a_resumed_run_makes_only_missing_videos(run: Run) -> None:
    first = run(video__episodes=1, env__endless=True)
    made = first.path / "videos/point_0/episode_0.mp4"
    before = made.stat().st_mtime_ns
    again = run(output_dir=str(first.path), resume=True, video__episodes=2, env__endless=True)
    assert made.stat().st_mtime_ns == before
    assert videos(again) == {"point_0/episode_0.mp4", "point_0/episode_1.mp4"}


def test_lockstep_runs_get_videos(run: Run) -> None:
    evaluation = run(video__episodes=1, env__endless=True, eval__scheduler="lockstep")
    assert videos(evaluation) == {"point_0/episode_0.mp4"}
    assert evaluation.filmed.warnings == []


DEFAULT = {"video__episodes": None, "env__endless": True, "policy__inputs": "observation.image"}


def test_by_default_a_failure_of_each_task_gets_a_video_if_the_policy_uses_images(run: Run) -> None:
    assert videos(run(**DEFAULT)) == {"point_0/episode_0.mp4"}
    blind = run(**{**DEFAULT, "policy__inputs": []})
    assert videos(blind) == set()
    assert blind.filmed.note == (
        "no videos: the policy sees no images; --video.episodes=1 films it"
    )


def test_a_run_without_failures_says_why_it_has_no_video(run: Run) -> None:
    asked: dict[str, Any] = {"video__episodes": 1, "policy__type": "expert", "eval__n_episodes": 1}
    told = "no videos: no episode failed; --video.which=first records the first ones"
    assert run(**asked).filmed.note == told
    assert run(**{**asked, "video__episodes": None}).filmed.note is None, "nobody asked"
    assert run(**{**asked, "video__episodes": 0}).filmed.note is None


def _missing_extra(name: str) -> None:
    return None


def test_without_the_extra_a_run_with_requested_videos_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", _missing_extra)
    with refuses(MissingExtra, "extra.missing") as refused:
        run(video__episodes=1)
    assert "proctor[video]" in str(refused.value)
    assert not list(tmp_path.glob("run*/*.jsonl"))


def test_without_the_extra_a_run_with_default_videos_runs_without_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", _missing_extra)
    evaluation = run(**DEFAULT)
    assert evaluation.complete
    assert evaluation.filmed.videos == 0
    assert evaluation.filmed.note is not None
    assert evaluation.filmed.note.startswith("no videos: the video encoder is not installed")


def test_without_graphics_only_a_run_with_requested_videos_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preflight(self: Fake, keys: Sequence[str]) -> dict[str, str]:
        if "observation.image" in keys:
            raise NoGraphics("nothing can render")
        return {}

    monkeypatch.setattr(Fake, "preflight", preflight)
    with pytest.raises(NoGraphics):
        run(video__episodes=1)
    evaluation = run(video__episodes=None, env__endless=True)
    assert evaluation.complete
    assert evaluation.filmed.videos == 0


@pytest.mark.parametrize(
    "flag", [{"video__episodes": -1}, {"video__every": 0}, {"video__fps": 0}, {"video__width": 0}]
)
def test_invalid_values_are_refused_with_their_flag(run: Run, flag: dict[str, Any]) -> None:
    name = next(iter(flag)).replace("__", ".")
    with pytest.raises(UsageError) as refused:
        run(**flag)
    assert f"--{name}" in str(refused.value)
