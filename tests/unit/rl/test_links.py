"""The link between actors and a learner inside one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from proctor.errors import ConnectionLost
from proctor.rl.link.links import (
    ActorPosition,
    ActorWeights,
    InProcessLink,
    InteractionMessage,
    LearnerEndpoint,
    wait_for_weights,
)
from tests.unit.rl.builders import transition


def rewards(endpoint: LearnerEndpoint, most: int | None = None) -> list[float]:
    taken = endpoint.take(most)
    endpoint.acknowledge(taken)
    return [one.transition.reward for one in taken]


@pytest.fixture
def endpoint() -> Iterator[LearnerEndpoint]:
    made = LearnerEndpoint()
    yield made
    made.close()


def test_transitions_arrive_in_order_and_a_part_can_be_taken(endpoint: LearnerEndpoint) -> None:
    link = InProcessLink(endpoint)
    link.send([transition(1), transition(2)])
    link.send([transition(3)])
    assert rewards(endpoint, 2) == [1, 2]
    assert rewards(endpoint) == [3]
    assert endpoint.take(timeout_s=0.01) == []


def test_a_transition_is_acknowledged_when_the_learner_says_it_is_stored(
    endpoint: LearnerEndpoint,
) -> None:
    link = InProcessLink(endpoint)
    link.send([transition(1), transition(2)])
    taken = endpoint.take()
    assert not link.wait_acknowledged(0.01)
    endpoint.acknowledge(taken[:1])
    assert not link.wait_acknowledged(0.01)
    endpoint.acknowledge(taken[1:])
    assert link.wait_acknowledged(0.01)


def test_a_transition_that_is_sent_again_is_received_once(endpoint: LearnerEndpoint) -> None:
    endpoint.receive("a", 1, [transition(1), transition(2)], 0.0)
    endpoint.receive("a", 2, [transition(2), transition(3)], 0.0)
    endpoint.receive("b", 1, [transition(10)], 0.0)
    assert rewards(endpoint) == [1, 2, 3, 10]
    endpoint.receive("a", 1, [transition(1)], 0.0)
    assert rewards(endpoint) == []


def test_a_resumed_learner_knows_what_it_has_stored() -> None:
    endpoint = LearnerEndpoint({"actor-0": ActorPosition(2)})
    endpoint.receive("actor-0", 1, [transition(n) for n in (1, 2, 3)], 0.0)
    assert rewards(endpoint) == [3]
    link = InProcessLink(endpoint)
    link.send([transition(4)])
    assert [(one.actor, one.number) for one in endpoint.take()] == [("actor-0", 4)]


def test_an_actor_replays_its_unfinished_episode_or_continues_after_it(
    endpoint: LearnerEndpoint,
) -> None:
    first = InProcessLink(endpoint)
    first.send([transition(1), transition(2, done=True), transition(3)])
    rewards(endpoint)
    again = InProcessLink(endpoint)
    assert again.begin(replay=True) == ActorPosition(stored=3, episodes=1, transitions=2)
    again.send([transition(3), transition(4)])
    assert rewards(endpoint) == [4]
    other = InProcessLink(endpoint)
    assert other.begin(replay=False).stored == 4
    other.send([transition(5)])
    assert rewards(endpoint) == [5]


def test_transitions_without_numbers_are_all_received(endpoint: LearnerEndpoint) -> None:
    for _ in range(2):
        endpoint.receive("lerobot", None, [transition(1)], 0.0)
    assert rewards(endpoint) == [1, 1]


def test_actors_wait_while_the_queue_is_full() -> None:
    endpoint = LearnerEndpoint(max_waiting_bytes=4000)
    big = transition(1, size=2000)
    assert endpoint.receive("a", 1, [big], 0.0), "one batch above the limit waits for nothing"
    assert not endpoint.receive("a", 2, [transition(2)], 0.01)
    sender = threading.Thread(target=InProcessLink(endpoint, "b").send, args=([transition(3)],))
    sender.start()
    assert rewards(endpoint) == [1]
    sender.join(60)
    assert rewards(endpoint) == [3]


def test_only_the_newest_weights_are_returned_and_only_once(endpoint: LearnerEndpoint) -> None:
    link = InProcessLink(endpoint)
    assert link.newest_weights() is None
    for version in (1, 2):
        endpoint.publish(ActorWeights({"policy": {"w": np.ones(2)}}, version))
    newest = wait_for_weights(link, 1.0)
    assert newest.version == 2
    assert link.newest_weights() is None
    with pytest.raises(ConnectionLost):
        wait_for_weights(link, 0.01)


def test_interactions_reach_the_learner(endpoint: LearnerEndpoint) -> None:
    message = InteractionMessage(1.0, 40, True, 0.25, {"Success": 1.0})
    InProcessLink(endpoint).send_interaction(message)
    assert endpoint.take_interactions() == [message]
    assert endpoint.take_interactions() == []


def test_a_stopped_learner_ends_what_waits_for_it(endpoint: LearnerEndpoint) -> None:
    link = InProcessLink(endpoint)
    link.send([transition(1)])
    threading.Timer(0.05, endpoint.close).start()
    with pytest.raises(ConnectionLost):
        link.wait_acknowledged(10.0)
    with pytest.raises(ConnectionLost):
        link.send([transition(2)])
