"""An actor's gRPC link to the learner's service: answers, restarts on both sides, keys."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proctor.errors import ConnectionLost, FolderInUse, ProtocolError, UsageError
from proctor.rl.learner.channel import LearnerAddress
from proctor.rl.learner.service import LearnerService
from proctor.rl.link.learner_client import GrpcLearnerLink, LinkSettings
from proctor.rl.link.links import (
    ActorPosition,
    ActorWeights,
    InteractionMessage,
    LearnerEndpoint,
    wait_for_weights,
)
from proctor.rl.link.payloads import TransitionSpec
from proctor.system.limits import ServerLimits
from tests.certificates import write_certificate
from tests.unit.rl.builders import StoringLearner, same_transition, transition

SPEC = TransitionSpec({"observation.state": (3,)}, 2)
FAST = LinkSettings(connect_s=60.0, give_up_s=60.0)


@contextlib.contextmanager
def serving(
    endpoint: LearnerEndpoint, port: int = 0, limits: ServerLimits | None = None
) -> Iterator[LearnerService]:
    service = LearnerService(endpoint, SPEC, limits or ServerLimits(), port)
    try:
        yield service
    finally:
        endpoint.close()
        service.close()


@contextlib.contextmanager
def linked(port: int, settings: LinkSettings = FAST) -> Iterator[GrpcLearnerLink]:
    link = GrpcLearnerLink(LearnerAddress(port=port), settings)
    try:
        yield link
    finally:
        with contextlib.suppress(ConnectionLost):
            link.close()


def eventually(holds: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_a_call_is_answered_when_the_transitions_are_stored() -> None:
    endpoint = LearnerEndpoint()
    sent = [transition(n, done=n == 2) for n in (1, 2, 3)]
    with serving(endpoint) as service, linked(service.port) as link:
        assert link.begin(replay=False) == ActorPosition()
        assert not link.is_lerobot
        link.send(sent)
        taken = endpoint.take(timeout_s=60.0)
        assert all(map(same_transition, [one.transition for one in taken], sent))
        assert not link.wait_acknowledged(0.05)
        endpoint.acknowledge(taken)
        assert link.wait_acknowledged(60.0)
        assert endpoint.position(link.actor) == ActorPosition(stored=3, episodes=1, transitions=2)


def test_weights_and_interactions_pass() -> None:
    endpoint = LearnerEndpoint()
    message = InteractionMessage(1.0, 40, True, 0.25, {"Success": 1.0})
    with serving(endpoint) as service, linked(service.port) as link:
        values = np.arange(700_000, dtype=np.float32)  # more than one chunk
        endpoint.publish(ActorWeights({"policy": {"w": values}}, version=7))
        weights = wait_for_weights(link, 60.0)
        assert weights.version == 7
        assert np.array_equal(weights.modules["policy"]["w"], values)
        assert link.newest_weights() is None
        endpoint.publish(ActorWeights({"policy": {"w": values}}, version=8))
        assert wait_for_weights(link, 60.0).version == 8
        link.send_start("a start")
        starts: list[str] = []
        assert eventually(lambda: starts.extend(endpoint.take_starts()) or bool(starts))
        assert starts == ["a start"]
        link.send_interaction(message)
        received: list[InteractionMessage] = []
        assert eventually(lambda: received.extend(endpoint.take_interactions()) or bool(received))
        assert received == [message]


def test_many_actors_send_at_the_same_time() -> None:
    endpoint = LearnerEndpoint()
    learner = StoringLearner(endpoint)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(endpoint))
        links = [stack.enter_context(linked(service.port)) for _ in range(6)]
        for number in range(1, 21):
            for link in links:
                link.send([transition(number)])
        assert all(link.wait_acknowledged(60.0) for link in links)
        for link in links:
            numbers = [one.number for one in learner.stored if one.actor == link.actor]
            assert numbers == list(range(1, 21))
        learner.stop()


def test_a_restarted_learner_gets_every_transition_once() -> None:
    """Each learner dies with transitions that it received and did not store."""
    stored: list[float] = []
    positions: dict[str, ActorPosition] = {}
    endpoint = LearnerEndpoint()
    number, port = 0, 0
    with contextlib.ExitStack() as last:
        for life in range(5):
            with serving(endpoint, port) as service:
                port = service.port
                if life == 0:
                    link = last.enter_context(linked(port))
                for _ in range(3):
                    number += 1
                    link.send([transition(number)])
                taken = endpoint.take(timeout_s=60.0)[:2]
                stored += [one.transition.reward for one in taken]
                endpoint.acknowledge(taken)
                positions[link.actor] = endpoint.position(link.actor)
            endpoint = LearnerEndpoint(positions)
        last.enter_context(serving(endpoint, port))
        learner = StoringLearner(endpoint)
        assert link.wait_acknowledged(60.0)
        learner.stop()
        assert stored + learner.rewards == list(range(1, 16))
        assert stored, "some were stored before the last restart"


def test_weights_come_again_after_the_learners_restart() -> None:
    endpoint = LearnerEndpoint()
    with contextlib.ExitStack() as stack:
        with serving(endpoint) as service:
            link = stack.enter_context(linked(service.port))
            endpoint.publish(ActorWeights({"policy": {"w": np.ones(1)}}, version=1))
            assert wait_for_weights(link, 60.0).version == 1
        endpoint = LearnerEndpoint()
        stack.enter_context(serving(endpoint, service.port))
        endpoint.publish(ActorWeights({"policy": {"w": np.ones(1)}}, version=2))
        assert wait_for_weights(link, 60.0).version == 2


def test_a_restarted_actor_sends_the_transitions_of_its_folder(tmp_path: Path) -> None:
    settings = LinkSettings(folder=tmp_path, connect_s=60.0, close_s=0.2)
    endpoint = LearnerEndpoint()
    with serving(endpoint) as service:
        with linked(service.port, settings) as link:
            name = link.actor
            link.send([transition(1)])
            link.send([transition(2)])
            with pytest.raises(FolderInUse):
                GrpcLearnerLink(LearnerAddress(port=service.port), settings)
        learner = StoringLearner(endpoint)
        with linked(service.port, settings) as link:
            assert link.actor == name
            link.begin(replay=False)
            link.send([transition(3)])
            assert link.wait_acknowledged(60.0)
        learner.stop()
        assert learner.rewards == [1, 2, 3]
        assert not list(tmp_path.glob("*.transitions"))


def test_a_restarted_actor_replays_its_unfinished_episode(tmp_path: Path) -> None:
    settings = LinkSettings(folder=tmp_path, connect_s=60.0)
    endpoint = LearnerEndpoint()
    learner = StoringLearner(endpoint)
    with serving(endpoint) as service:
        with linked(service.port, settings) as link:
            link.send([transition(1, done=True), transition(2), transition(3)])
            assert link.wait_acknowledged(60.0)
        with linked(service.port, settings) as link:
            assert link.begin(replay=True) == ActorPosition(3, episodes=1, transitions=1)
            link.send([transition(n) for n in (2, 3, 4)])
            assert link.wait_acknowledged(60.0)
        learner.stop()
        assert learner.rewards == [1, 2, 3, 4]


def test_images_of_the_own_learner_stay_uint8() -> None:
    endpoint = LearnerEndpoint()
    spec = TransitionSpec({"observation.image": (3, 4, 5)}, 2)
    image = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    sent = transition(1)
    sent = type(sent)(
        {"observation.image": image}, sent.action, 1.0, {"observation.image": image}, True
    )
    service = LearnerService(endpoint, spec, ServerLimits(), 0)
    with linked(service.port) as link:
        link.send([sent])
        (received,) = endpoint.take(timeout_s=60.0)
        assert same_transition(received.transition, sent)
        endpoint.acknowledge([received])
    service.close()


def test_transitions_of_another_task_are_refused() -> None:
    endpoint = LearnerEndpoint()
    with serving(endpoint) as service, linked(service.port) as link:
        link.send([transition(1, size=4)])
        with pytest.raises(ProtocolError) as caught:
            link.wait_acknowledged(60.0)
        assert caught.value.code == "rl.learner-refused"
        assert endpoint.take() == []


def test_after_the_training_nothing_is_kept(tmp_path: Path) -> None:
    endpoint = LearnerEndpoint()
    with serving(endpoint) as service:
        for folder in (None, tmp_path):
            link = GrpcLearnerLink(
                LearnerAddress(port=service.port), LinkSettings(folder=folder, close_s=0.1)
            )
            link.send([transition(1)])
            link.abandon()
            link.close()
    assert not list(tmp_path.glob("*.transitions"))


def test_a_learner_that_stays_away_ends_the_actor() -> None:
    endpoint = LearnerEndpoint()
    with serving(endpoint) as service:
        link = GrpcLearnerLink(
            LearnerAddress(port=service.port), LinkSettings(give_up_s=0.2, close_s=0.1)
        )
    link.send([transition(1)])
    with pytest.raises(ConnectionLost):
        link.wait_acknowledged(60.0)
    with pytest.raises(ConnectionLost):
        link.close()


def test_no_learner_is_one_usage_error() -> None:
    with pytest.raises(UsageError) as caught:
        GrpcLearnerLink(LearnerAddress(port=9), LinkSettings(connect_s=0.1))
    assert caught.value.code == "rl.learner-unreachable"


def test_a_wrong_key_is_refused_and_the_right_one_accepted() -> None:
    endpoint = LearnerEndpoint()
    with serving(endpoint, limits=ServerLimits(api_key="right")) as service:
        for key in (None, "wrong"):
            with pytest.raises(UsageError) as caught:
                GrpcLearnerLink(LearnerAddress(port=service.port, api_key=key), FAST)
            assert caught.value.code == "rl.learner-refused"
        GrpcLearnerLink(LearnerAddress(port=service.port, api_key="right"), FAST).close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_with_tls_only_actors_that_trust_the_certificate_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_certificate(tmp_path)
    endpoint = LearnerEndpoint()
    learner = StoringLearner(endpoint)
    hurried = LinkSettings(connect_s=0.1)
    with serving(endpoint, limits=ServerLimits(tls=files)) as service:
        address = LearnerAddress(port=service.port, encrypted=True)
        for untrusting in (replace(address, encrypted=False), address):
            with pytest.raises(UsageError) as caught:
                GrpcLearnerLink(untrusting, hurried)
            assert caught.value.code == "rl.learner-unreachable"
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        link = GrpcLearnerLink(address, FAST)
        link.send([transition(1)])
        assert link.wait_acknowledged(60.0)
        assert learner.rewards == [1]
        link.close()
        learner.stop()


def test_without_a_key_only_loopback_is_served() -> None:
    with pytest.raises(UsageError) as caught:
        LearnerService(LearnerEndpoint(), SPEC, ServerLimits(host="0.0.0.0"), 0)
    assert caught.value.code == "rl.key-missing"


def test_a_port_in_use_is_one_usage_error() -> None:
    with serving(LearnerEndpoint()) as service:
        with pytest.raises(UsageError) as caught:
            LearnerService(LearnerEndpoint(), SPEC, ServerLimits(), service.port)
        assert caught.value.code == "serve.address-unavailable"
