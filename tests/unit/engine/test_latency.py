"""Evaluation with latency: the old chunk is executed while the new one is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.cli import main
from proctor.engine.action_queue import ActionQueue
from proctor.errors import PolicyError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.features import ENVIRONMENT_STATE, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.policies.scripted.random import RandomConfig
from proctor.runs.journal import read_journal
from tests.conftest import digests
from tests.refusals import refuses

FAKE = Fake(FakeConfig())
SPEC = FAKE.spec(FAKE.tasks()[0], 0, 1)


def played(latency: int, lengths: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Execute chunks of these lengths; an action is (step of its request, index in its chunk)."""
    action_queue, step, stretches = ActionQueue(SPEC, latency), 0, []
    for length in lengths:
        chunk = np.array([(step, place) for place in range(length)], np.float32)
        stretch = action_queue.next_actions(chunk)
        stretches.append([(int(asked), int(place)) for asked, place in stretch])
        step += len(stretch)
    return stretches


def test_without_latency_every_chunk_is_played_whole() -> None:
    assert played(0, [2, 2]) == [[(0, 0), (0, 1)], [(2, 0), (2, 1)]]


def test_the_next_chunk_is_asked_for_early_and_its_past_is_left_out() -> None:
    first, second, third = played(2, [5, 5, 5])
    assert first == [(0, 0), (0, 1), (0, 2)]
    assert second == [(0, 3), (0, 4), (3, 2)], "the old chunk goes on for two steps"
    assert third == [(3, 3), (3, 4), (6, 2)]


@pytest.mark.parametrize("latency", [1, 2, 3, 4])
def test_every_action_is_played_at_the_step_it_was_meant_for(latency: int) -> None:
    steps = [action for stretch in played(latency, [5] * 6) for action in stretch]
    assert [asked + place for asked, place in steps] == list(range(len(steps)))
    assert {place for asked, place in steps if asked} == set(range(latency, 5))


def test_chunks_may_have_a_length_each_but_not_be_over_when_they_come() -> None:
    assert [len(stretch) for stretch in played(2, [4, 3, 6])] == [2, 1, 4]
    with refuses(PolicyError, "policy.chunk-too-short") as refused:
        played(2, [4, 2])
    assert "--eval.latency_steps=2" in str(refused.value)


class Stale(Policy):
    """Walks to the observed goal over a chunk of eight steps, then stands."""

    def __init__(self, config: PolicyConfig, interface: Interface) -> None:
        self.spec = PolicySpec("stale", (ENVIRONMENT_STATE,), n_action_steps=8)

    def act(self, batch: Batch) -> Array:
        state = batch.observations[ENVIRONMENT_STATE][:, -1]
        way = (state[:, 2:] - state[:, :2]) * 10
        return np.stack([np.clip(way - step, -1, 1) for step in range(8)], axis=1)


@pytest.fixture
def lagging(run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch) -> Any:
    from proctor import plugins

    stale = PolicyPlugin(config=RandomConfig, make=Stale, summary="")
    monkeypatch.setattr(plugins, "find_policy", lambda name: stale)

    def play(latency: int, **flags: Any) -> Evaluation:
        return run(eval__latency_steps=latency, eval__n_episodes=6, **flags)

    return play


@pytest.mark.parametrize("latency", [3, 7])
def test_load_scheduler_and_resume_change_no_episode_that_is_played_late(
    lagging: Callable[..., Evaluation], latency: int
) -> None:
    alone = lagging(latency, eval__batch_size=1, eval__use_async_envs=False)
    assert digests(lagging(latency, eval__batch_size=3)) == digests(alone)
    lockstep = lagging(latency, eval__scheduler="lockstep", eval__use_async_envs=False)
    assert digests(lockstep) == digests(alone)
    some = lagging(latency, eval__episodes=[1, 4])
    rest = lagging(latency, output_dir=str(some.path), resume=True)
    assert digests(rest) == digests(alone)
    assert digests(lagging(0)) != digests(alone), "the flag must do something"


def test_a_policy_in_the_worker_and_one_in_the_engine_are_late_alike(
    lagging: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    from proctor.policies.base import Placement

    in_engine = lagging(3, eval__use_async_envs=False)
    init = Stale.__init__

    def beside(self: Stale, config: PolicyConfig, interface: Interface) -> None:
        init(self, config, interface)
        self.spec = replace(self.spec, placement=Placement.WORKER)

    monkeypatch.setattr(Stale, "__init__", beside)
    assert digests(lagging(3, eval__use_async_envs=False)) == digests(in_engine)


def test_latency_defines_an_episode_and_none_is_the_same_as_zero(
    run: Callable[..., Evaluation],
) -> None:
    chunked = {"policy__n_action_steps": 4, "eval__use_async_envs": False}
    path = run(**chunked, eval__n_episodes=2).path
    more = {**chunked, "output_dir": str(path), "resume": True, "eval__n_episodes": 3}
    assert len(run(**more, eval__latency_steps=0).rows) == 3
    with pytest.raises(UsageError) as refused:
        run(**more, eval__latency_steps=2)
    assert "--eval.latency_steps" in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"eval__latency_steps": 2}, "2"),
        ({"eval__latency_steps": 4, "policy__n_action_steps": 4}, "at most 3"),
        ({"eval__latency_steps": -1}, "--eval.latency_steps"),
    ],
)
def test_a_latency_that_no_chunk_lasts_for_is_refused(
    run: Callable[..., Evaluation], flags: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        run(**flags)
    assert named in str(refused.value)
    assert not any(tmp_path.iterdir())


def test_several_latencies_are_a_run_each_and_a_curve_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", "--policy.type=random", "--policy.n_action_steps=5", "--env.type=fake"]
    words += ["--eval.use_async_envs=false", "--eval.n_episodes=3", "--output_dir=out"]
    assert main([*words, "--eval.latency_steps=0,2,4"]) == 0
    said = capsys.readouterr()
    assert "compared with latency0" in said.out
    assert "warning" not in said.err, "what is asked for is no surprise"
    for steps in (0, 2, 4):
        assert len(read_journal(Path(f"out/latency{steps}")).rows) == 3
    page = Path("out/compare.html").read_text()
    values = page.split('id="run">')[1].split("</script>")[0]
    (curve,) = json.loads(values)["curves"]
    assert [point["latency"] for point in curve["points"]] == [0, 2, 4]
    assert all(point["episodes"] == 3 and point["interval"] for point in curve["points"])
