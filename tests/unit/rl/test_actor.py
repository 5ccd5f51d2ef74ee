"""The actor's loop: weights, executed actions, seeds, and an actor that was killed."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.config.sections.online import InterventionSettings, InterventionSource, RewardSource
from proctor.errors import ConnectionLost
from proctor.features import STATE, Array, Observation
from proctor.rl.actor.actor import Actor, ActorDecision, ActorSettings, episode_seeds
from proctor.rl.actor.interventions import (
    ExpertIntervention,
    Intervention,
    InterventionSignal,
    NoIntervention,
)
from proctor.rl.environment.environments import EnvStep, SimOnlineEnv, StepInfo
from proctor.rl.learner.metrics import BufferSizes, MetricMeans
from proctor.rl.learner.monitor import metric_figures
from proctor.rl.link.links import ActorWeights, InProcessLink, LearnerEndpoint, ReceivedTransition
from proctor.rl.transitions import Transition
from proctor.starts import DemonstrationStart
from tests.refusals import refuses

_FAKE = Fake(FakeConfig(episode_length=5))
_SETTINGS = ActorSettings(seed=3, online_steps=12, weights_s=5.0)


class _Policy:
    """Returns its weight plus noise, and a value that falls with every decision."""

    def __init__(self) -> None:
        self.weight, self.loaded = 0.0, 0

    def load(self, weights: ActorWeights) -> None:
        self.weight = float(weights.modules["policy"]["weight"][0])
        self.loaded += 1

    def decide(self, observation: Observation, generator: torch.Generator | None) -> ActorDecision:
        noise = torch.rand(2, generator=generator).numpy()
        return ActorDecision((self.weight + 0.1 * noise).astype(np.float32), value=-1.0)


def _env() -> SimOnlineEnv:
    return SimOnlineEnv(_FAKE, _FAKE.tasks()[0], keys=[STATE], reward=RewardSource.SUCCESS)


def _endpoint(weight: float = -1.0, version: int = 10**6) -> LearnerEndpoint:
    endpoint = LearnerEndpoint()
    endpoint.publish(_weights(weight, version))
    return endpoint


def _weights(weight: float, version: int) -> ActorWeights:
    return ActorWeights({"policy": {"weight": np.array([weight], np.float32)}}, version)


def _run(
    endpoint: LearnerEndpoint,
    intervention: Intervention | None = None,
    settings: ActorSettings = _SETTINGS,
) -> list[ReceivedTransition]:
    link = InProcessLink(endpoint)
    Actor(_env(), _Policy(), intervention or NoIntervention(), link, settings).run()
    return endpoint.take()


def _equal(first: Transition, second: Transition) -> bool:
    return (
        np.array_equal(first.observation[STATE], second.observation[STATE])
        and np.array_equal(first.action, second.action)
        and np.array_equal(first.next_observation[STATE], second.next_observation[STATE])
        and (first.reward, first.done, first.truncated)
        == (second.reward, second.done, second.truncated)
    )


def test_episodes_are_whole_and_chained() -> None:
    sent = [one.transition for one in _run(_endpoint())]
    assert len(sent) >= 12
    assert sent[-1].done or sent[-1].truncated
    for before, after in itertools.pairwise(sent):
        if not (before.done or before.truncated):
            assert np.array_equal(before.next_observation[STATE], after.observation[STATE])


def test_the_start_of_every_episode_is_sent_before_its_transitions() -> None:
    endpoint = _endpoint()
    sent = _run(endpoint)
    episodes = sum(one.transition.done or one.transition.truncated for one in sent)
    starts = [DemonstrationStart.from_json(text) for text in endpoint.take_starts()]
    assert len(starts) == episodes == 3
    assert starts[0].source.benchmark == "fake"
    point = starts[0].start.values[:2]
    assert np.allclose(sent[0].transition.observation[STATE], point, atol=1e-6)
    assert len({one.start.digest for one in starts}) == episodes


def test_a_time_limit_is_no_end_of_the_task() -> None:
    sent = [one.transition for one in _run(_endpoint())]
    assert sent[4].truncated
    assert not sent[4].done


def test_two_actors_of_one_learner_play_other_episodes() -> None:
    first = _run(_endpoint())
    second = _run(_endpoint(), settings=replace(_SETTINGS, index=1))
    again = _run(_endpoint())
    assert not _equal(first[0].transition, second[0].transition)
    assert all(_equal(a.transition, b.transition) for a, b in zip(first, again, strict=True))


def test_seeds_differ_between_episodes_and_actors() -> None:
    seeds = [episode_seeds(0, actor, episode) for actor in range(20) for episode in range(20)]
    assert len({env for env, _ in seeds}) == len({noise for _, noise in seeds}) == 400


def test_a_restarted_actor_sends_the_unfinished_episode_again() -> None:
    whole = _run(_endpoint())
    endpoint = _endpoint()
    endpoint.receive("actor-0", 1, [one.transition for one in whole[:7]], timeout_s=1.0)
    endpoint.acknowledge(endpoint.take())  # one episode of 5, and two steps of the next
    rest = _run(endpoint)
    assert [one.number for one in rest] == list(range(8, len(whole) + 1))
    assert all(_equal(a.transition, b.transition) for a, b in zip(rest, whole[7:], strict=True))


def test_weights_change_between_episodes_only() -> None:
    endpoint = _endpoint(weight=0.0)

    class PublishesInMidEpisode(NoIntervention):
        def signal(self, step: int, value: float | None) -> InterventionSignal:
            if step == 2:
                endpoint.publish(_weights(-1.0, 10**6))
            return InterventionSignal()

    sent = [one.transition for one in _run(endpoint, PublishesInMidEpisode())]
    signs = [bool((one.action >= 0).all()) for one in sent]
    assert signs[:5] == [True] * 5
    assert not any(signs[5:])


def test_lockstep_waits_for_weights_of_all_transitions() -> None:
    settings = replace(_SETTINGS, lockstep=True, weights_s=0.05)
    endpoint = _endpoint(version=0)
    with pytest.raises(ConnectionLost):
        _run(endpoint, settings=settings)
    assert len(endpoint.take()) == 5


def test_lockstep_sends_an_episode_in_pieces() -> None:
    endpoint = _endpoint()
    waiting = []

    class Counts(NoIntervention):
        def signal(self, step: int, value: float | None) -> InterventionSignal:
            waiting.append(len(endpoint.take()))
            return InterventionSignal()

    settings = replace(_SETTINGS, lockstep=True, send_every=2, online_steps=5)
    rest = _run(endpoint, Counts(), settings)
    assert (waiting, len(rest)) == ([0, 0, 2, 0, 2], 1)
    assert len(endpoint.take_interactions()) == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (InterventionSettings(InterventionSource.EXPERT, every=2), [0, 5, 0]),
        (InterventionSettings(InterventionSource.EXPERT, every=2, after=2, steps=1), [0, 1, 0]),
        (InterventionSettings(InterventionSource.EXPERT, below=-0.5, after=3), [2, 2, 2]),
        (InterventionSettings(InterventionSource.EXPERT, below=-2.0), [0, 0, 0]),
    ],
)
def test_the_expert_takes_over(settings: InterventionSettings, expected: Sequence[int]) -> None:
    env = _env()
    endpoint = _endpoint()
    actor = Actor(
        env, _Policy(), ExpertIntervention(env, settings), InProcessLink(endpoint), _SETTINGS
    )
    actor.run()
    sent = [one.transition for one in endpoint.take()]
    episodes = [sent[0:5], sent[5:10], sent[10:15]]
    assert [sum(one.is_intervention for one in episode) for episode in episodes] == expected
    messages = endpoint.take_interactions()
    assert [message.episode_intervention for message in messages] == [n > 0 for n in expected]
    assert messages[-1].interaction_step == len(sent)


def test_an_intervention_is_stored_as_executed() -> None:
    class TurnsLeft(NoIntervention):
        def signal(self, step: int, value: float | None) -> InterventionSignal:
            return InterventionSignal(np.array([0.25, -0.5]) if step == 1 else None)

    sent = [one.transition for one in _run(_endpoint(), TurnsLeft())]
    np.testing.assert_array_equal(sent[1].action, [0.25, -0.5])
    moved = sent[1].next_observation[STATE] - sent[1].observation[STATE]
    np.testing.assert_allclose(moved, [0.025, -0.05], atol=1e-6)
    assert [one.is_intervention for one in sent[:3]] == [False, True, False]


def test_a_person_ends_the_episode_with_success() -> None:
    class SaysDone(NoIntervention):
        def signal(self, step: int, value: float | None) -> InterventionSignal:
            return InterventionSignal(success=step == 2)

    endpoint = _endpoint()
    sent = [one.transition for one in _run(endpoint, SaysDone())]
    assert (sent[2].reward, sent[2].done, sent[2].truncated) == (1.0, True, False)
    assert endpoint.take_interactions()[0].extra["Success"] == 1.0


def test_a_discarded_episode_is_played_again() -> None:
    class DiscardsTheFirst(NoIntervention):
        is_discarded = False

        def signal(self, step: int, value: float | None) -> InterventionSignal:
            if step == 3 and not self.is_discarded:
                self.is_discarded = True
                return InterventionSignal(rerecord=True)
            return InterventionSignal()

    sent, usual = _run(_endpoint(), DiscardsTheFirst()), _run(_endpoint())
    assert all(_equal(a.transition, b.transition) for a, b in zip(sent, usual, strict=True))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_an_action_that_is_not_finite_is_not_executed(value: float) -> None:
    class Broken(NoIntervention):
        def signal(self, step: int, value_: float | None) -> InterventionSignal:
            return InterventionSignal(np.array([0.0, value]) if step == 1 else None)

    endpoint = _endpoint()
    with refuses(ConnectionLost, "rl.action-not-finite"):
        _run(endpoint, Broken())
    assert endpoint.take() == []


def test_an_episode_counts_as_a_success_if_any_step_was_one() -> None:
    """As evaluations count; some environments go on after a success and lose it again."""

    class LosesItAgain(SimOnlineEnv):
        step_number = 0

        def reset(self, seed: int) -> Observation:
            self.step_number = 0
            return super().reset(seed)

        def step(self, action: Array) -> EnvStep:
            self.step_number += 1
            step = super().step(action)
            return step._replace(info=StepInfo(success=self.step_number == 2))

    endpoint = _endpoint()
    env = LosesItAgain(_FAKE, _FAKE.tasks()[0], keys=[STATE])
    Actor(env, _Policy(), NoIntervention(), InProcessLink(endpoint), _SETTINGS).run()
    endpoint.take()
    messages = endpoint.take_interactions()
    means = MetricMeans()
    for message in messages:
        means.add_interaction(message)
    metrics = means.collect(12, 0, BufferSizes(0, None))
    assert (metrics.success, metrics.success_at_end) == (1.0, 0.0)
    figures = metric_figures(metrics)
    assert (figures["train/Success"], figures["train/Success at end"]) == (1.0, 0.0)
