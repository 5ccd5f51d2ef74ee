"""One episode: observations, digests and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.engine.worker.episode import ObservedEpisode, Window
from proctor.evaluation.run import Evaluation
from proctor.report.run.summary import tally
from proctor.runs.journal import make_record
from proctor.runs.sessions import read_session_totals
from proctor.types import EpisodeSpec, Outcome, StepResult
from tests.run_folders import episode as episode_row


class CountingSim(FakeSim):
    """A fake simulator that records after which steps it was observed."""

    def reset(self, spec: EpisodeSpec) -> None:
        self.observed_at: list[int] = []
        super().reset(spec)

    def observe(self, keys: Any) -> dict[str, Any]:
        self.observed_at.append(self._steps)
        return super().observe(keys)


def make_episode(
    *, n_obs_steps: int = 1, max_steps: int = 20, keys: tuple[str, ...] = ("observation.image",)
) -> tuple[ObservedEpisode, CountingSim, Window]:
    config = FakeConfig(episode_length=max_steps, endless=True, image_size=4)
    benchmark = Fake(config)
    task = benchmark.tasks()[0]
    sim = CountingSim(config, task)
    features = {key: benchmark.features()[key] for key in keys}
    arrays = {key: np.zeros((n_obs_steps, *f.shape), f.dtype) for key, f in features.items()}
    window = Window(arrays, features, n_obs_steps)
    episode = ObservedEpisode(
        sim, benchmark.spec(task, 0, 1), benchmark.action, window, lambda _: None
    )
    episode.begin()
    return episode, sim, window


def chunk(length: int) -> Any:
    return np.full((length, 2), 0.3, np.float32)


def test_only_the_last_observation_of_a_chunk_is_rendered() -> None:
    episode, sim, _ = make_episode()
    episode.run(chunk(5))
    episode.run(chunk(5))
    assert sim.observed_at == [0, 5, 10]
    assert episode.renders == 3


def test_as_many_observations_are_rendered_as_the_policy_looks_back() -> None:
    episode, sim, window = make_episode(n_obs_steps=2, keys=("observation.state",))
    assert np.array_equal(
        window.arrays["observation.state"][0], window.arrays["observation.state"][1]
    )
    episode.run(chunk(5))
    assert sim.observed_at == [0, 4, 5]
    before, now = window.arrays["observation.state"]
    assert np.allclose(now - before, 0.03), "oldest first, one step apart"


def test_chunks_shorter_than_the_look_back_keep_older_observations() -> None:
    episode, sim, window = make_episode(n_obs_steps=3, keys=("observation.state",))
    start = window.arrays["observation.state"][0].copy()
    episode.run(chunk(1))
    assert sim.observed_at == [0, 1]
    states = window.arrays["observation.state"]
    assert np.array_equal(states[0], start)
    assert np.array_equal(states[1], start)
    assert np.allclose(states[2] - start, 0.03)


def test_nothing_is_rendered_when_the_horizon_falls_inside_the_chunk() -> None:
    episode, sim, _ = make_episode(max_steps=7, n_obs_steps=2)
    episode.run(chunk(5))
    assert sim.observed_at == [0, 4, 5]
    episode.run(chunk(5))
    assert episode.ended
    assert episode.steps == 7
    assert sim.observed_at == [0, 4, 5]


def test_a_chunk_that_reaches_the_horizon_exactly_renders_nothing_either() -> None:
    episode, sim, _ = make_episode(max_steps=5)
    episode.run(chunk(5))
    assert episode.ended
    assert sim.observed_at == [0]


def test_actions_after_the_end_are_neither_executed_nor_counted() -> None:
    episode, _, _ = make_episode(max_steps=3)
    episode.run(np.full((10, 2), 5.0, np.float32))
    result = episode.result(worker=0)
    assert result.steps == 3
    assert result.clipped_steps == 3


def test_the_digest_tells_episodes_apart() -> None:
    digests = set()
    for actions in (chunk(20), chunk(20) * 0.5, chunk(20)):
        episode, _, _ = make_episode()
        episode.run(actions)
        digests.add(episode.result(worker=0).digest)
    assert len(digests) == 2


@pytest.mark.parametrize(("n_action_steps", "renders"), [(1, 50), (10, 5), (20, 3), (60, 1)])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_run_reports_exactly_the_renders_its_chunks_need(
    run: Callable[..., Evaluation], n_action_steps: int, renders: int, batch_size: int
) -> None:
    evaluation = run(
        policy__inputs="observation.image",
        policy__n_action_steps=n_action_steps,
        env__endless=True,
        eval__batch_size=batch_size,
        eval__n_episodes=2,
    )
    assert [row.renders for row in evaluation.rows] == [renders, renders]
    assert [row.steps for row in evaluation.rows] == [50, 50]


def test_a_policy_that_takes_no_image_costs_no_rendering(run: Callable[..., Evaluation]) -> None:
    evaluation = run(policy__inputs="observation.state")
    assert [row.renders for row in evaluation.rows] == [0, 0, 0, 0]


def test_the_digest_sees_the_world_an_episode_started_in(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for moved in (0, 1):
        with monkeypatch.context() as start:
            start.setattr(
                FakeSim, "physics", lambda sim, by=moved: np.full(4, by * (not sim._steps))
            )
            episode, _, _ = make_episode(max_steps=2)
            episode.run(chunk(2))
            digests.append(episode.result(0).digest)
    assert digests[0] != digests[1]


class GoesOn(FakeSim):
    """A simulator that succeeds at steps 3 and 4 and does not end the episode."""

    def step(self, action: Any) -> StepResult:
        super().step(action)
        return StepResult(reward=0.0, success=self._steps in (3, 4), terminated=False)


def test_steps_to_success_end_with_the_first_one_where_the_world_goes_on() -> None:
    config = FakeConfig(episode_length=9)
    benchmark = Fake(config)
    task = benchmark.tasks()[0]
    rows = []
    for sim in (GoesOn(config, task), FakeSim(config, task)):
        spec = benchmark.spec(task, len(rows), 1)
        episode = ObservedEpisode(sim, spec, benchmark.action, Window({}, {}, 1), lambda _: None)
        episode.begin()
        episode.run(chunk(9))
        rows.append(make_record(episode.result(0)))
    assert [(row.steps, row.steps_to_success) for row in rows] == [(9, 3), (9, None)]
    assert tally(rows).mean_steps_to_success == 3


def test_of_a_journal_from_before_steps_to_success_are_those_of_the_episode() -> None:
    old = episode_row(0, 0, Outcome.SUCCESS)
    assert (tally([old]).mean_steps_to_success, old.steps_to_success) == (old.steps, None)


@pytest.mark.parametrize("scheduler", ["continuous", "lockstep"])
def test_every_step_of_a_session_is_counted(run: Callable[..., Evaluation], scheduler: str) -> None:
    done = run(eval__scheduler=scheduler, eval__use_async_envs=False)
    assert read_session_totals(done.path).steps == sum(row.steps or 0 for row in done.rows)
