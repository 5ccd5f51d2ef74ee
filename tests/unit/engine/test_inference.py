"""The policy's thread makes every call into a policy, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.callbacks.base import Callback
from proctor.config.sections.evaluation import RolloutConfig
from proctor.engine.chunks import blame_policy
from proctor.engine.cluster.replicated import ReplicatedInference
from proctor.engine.engine import Engine
from proctor.engine.inference import (
    ActionReply,
    ActionRequest,
    ActionRequestBatch,
    EpisodeAttempt,
    ThreadInference,
)
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.errors import PolicyError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.features import Array, Feature, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.types import EpisodeResult, EpisodeSpec
from tests.conftest import digests
from tests.refusals import refuses

BENCHMARK = Fake(FakeConfig())


class RecordingPolicy(Policy):
    """Records its calls; the test sets its warm-up."""

    spec = PolicySpec("told")

    def __init__(self) -> None:
        self.pieces: Callable[[], Iterator[None]] = lambda: iter(())
        self.ends: list[Any] = []

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        return self.pieces()

    def new_episode(self, spec: EpisodeSpec) -> int:
        return spec.index

    def act(self, batch: Batch) -> Array:
        return np.zeros((len(batch.queries), 1, 2))

    def end_episode(self, state: Any) -> None:
        self.ends.append(state)
        if state == 13:
            raise ValueError("no luck")


class PolicyThread:
    """An inference thread with a policy, and one batch for it."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.policy = RecordingPolicy()
        self.thread = ThreadInference(self.policy, BENCHMARK.action)
        self.thread.attach(self.answered.set)

    def attempt(self, index: int) -> EpisodeAttempt:
        return EpisodeAttempt(BENCHMARK.spec(BENCHMARK.tasks()[0], index, 0))

    def answer(self, attempt: EpisodeAttempt | None = None) -> ActionReply:
        ticket = self.thread.submit(
            ActionRequestBatch([ActionRequest(attempt or self.attempt(0), 0)], {})
        )
        assert self.answered.wait(60)
        taken = self.thread.take()
        assert taken is not None
        assert taken[0] == ticket
        return taken[1]


@pytest.fixture
def asked() -> Iterator[PolicyThread]:
    asked = PolicyThread()
    yield asked
    asked.thread.close()


def test_warming_up_goes_on_until_somebody_asks(asked: PolicyThread) -> None:
    done, first = [], threading.Event()

    def pieces() -> Iterator[None]:
        for piece in range(1000):
            yield
            done.append(piece)
            first.set()
            time.sleep(0.01)

    asked.policy.pieces = pieces
    asked.thread.warm_up({}, 1)
    assert first.wait(60)
    assert asked.answer().error is None
    assert 1 <= len(done) < 1000
    so_far = len(done)
    time.sleep(0.05)
    assert len(done) == so_far, "what is left is left"


def test_warming_up_that_fails_leaves_the_error_to_the_batch_that_meets_it(
    asked: PolicyThread,
) -> None:
    def pieces() -> Iterator[None]:
        yield
        raise RuntimeError("no memory left")

    asked.policy.pieces = pieces
    asked.thread.warm_up({}, 1)
    assert asked.answer().error is None


def test_an_episode_is_ended_once_and_only_if_the_policy_knows_it(asked: PolicyThread) -> None:
    known, unknown = asked.attempt(3), asked.attempt(4)
    asked.answer(known)
    for attempt in (known, known, unknown):
        asked.thread.end(attempt)
    asked.answered.clear()
    asked.answer()
    assert asked.policy.ends == [3]


def test_a_policy_that_cannot_end_an_episode_is_heard_of() -> None:
    asked = PolicyThread()
    attempt = asked.attempt(13)
    asked.answer(attempt)
    asked.thread.end(attempt)
    with refuses(PolicyError, "policy.raised") as refused:
        asked.thread.close()
    assert "ValueError: no luck" in str(refused.value)
    assert "point-0" in str(refused.value)


def test_what_a_policy_refuses_is_one_line_and_what_breaks_it_has_a_traceback() -> None:
    vocabulary = UsageError("tokens are another model's", code="policy.vocabulary")
    for raised, code in ((vocabulary, "policy.vocabulary"), (IndexError("3"), "policy.raised")):
        with refuses(PolicyError, code) as refused, blame_policy(RecordingPolicy(), "at step 0"):
            raise raised
        assert str(raised) in str(refused.value)
        assert (refused.value.__cause__ is None) == isinstance(raised, UsageError)


class ThreadCheckingPolicy(RandomPolicy):
    """Records which thread calls it, and whether two calls overlap."""

    seen: list[tuple[str, int]]
    overlaps = 0
    inside = 0

    def _note(self, name: str) -> Any:
        if self.inside:
            type(self).overlaps += 1
        type(self).inside += 1
        type(self).seen.append((name, threading.get_ident()))
        time.sleep(0.0005)
        type(self).inside -= 1

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        self._note("warm_up")
        yield

    def new_episode(self, spec: EpisodeSpec) -> Any:
        self._note("new_episode")
        return super().new_episode(spec)

    def act(self, batch: Batch) -> Array:
        self._note("act")
        return super().act(batch)

    def end_episode(self, state: Any) -> None:
        self._note("end_episode")

    def close(self) -> None:
        self._note("close")


WATCHING = PolicyPlugin(RandomConfig, ThreadCheckingPolicy, "notes its callers")
HOOKS = {"new_episode", "act", "end_episode", "close"}


@pytest.mark.parametrize(
    ("scheduler", "faults"),
    [("continuous", {}), ("continuous", {"0/2/3": "kill"}), ("lockstep", {})],
)
def test_all_calls_into_a_policy_come_from_one_thread_and_never_overlap(
    run: Callable[..., Evaluation], scheduler: str, faults: dict[str, str], tmp_path: Any
) -> None:
    ThreadCheckingPolicy.seen, ThreadCheckingPolicy.overlaps = [], 0
    run(
        policy__type="tests.unit.engine.test_inference:WATCHING",
        eval__n_episodes=20,
        eval__batch_size=4,
        eval__scheduler=scheduler,
        env__faults=faults,
        env__break_once_in=str(tmp_path),
    )
    names = [name for name, _ in ThreadCheckingPolicy.seen]
    assert set(names) - {"warm_up"} == HOOKS
    assert len({thread for _, thread in ThreadCheckingPolicy.seen}) == 1
    assert ThreadCheckingPolicy.overlaps == 0
    assert names.count("new_episode") == names.count("end_episode") == 20 + len(faults)
    assert names.count("close") == 1
    assert names[-1] == "close"


class Uneven(Policy):
    """Returns chunks of one to four actions, by episode and step."""

    spec = PolicySpec("uneven", n_action_steps=None)

    def __init__(self, config: PolicyConfig, interface: Interface) -> None:
        self._wrong = False

    def act(self, batch: Batch) -> list[Array]:
        lengths = [1 + (query.spec.index + query.step) % 4 for query in batch.queries]
        return [np.full((length, 2), 0.01 * length, np.float32) for length in lengths]


class Empty(Uneven):
    """Returns one chunk without an action."""

    def act(self, batch: Batch) -> list[Array]:
        return [chunk[batch.queries[0].step :] for chunk in super().act(batch)]


UNEVEN = PolicyPlugin(PolicyConfig, Uneven, "chunks of any length")
EMPTY = PolicyPlugin(PolicyConfig, Empty, "a chunk of none")


def test_every_row_may_have_a_chunk_of_its_own_length(run: Callable[..., Evaluation]) -> None:
    flags = {"policy__type": "tests.unit.engine.test_inference:UNEVEN", "eval__n_episodes": 6}
    alone = run(eval__batch_size=1, eval__use_async_envs=False, **flags)
    assert digests(run(eval__batch_size=4, **flags)) == digests(alone)
    assert digests(run(eval__batch_size=3, eval__scheduler="lockstep", **flags)) == digests(alone)


def test_a_chunk_without_an_action_is_refused(run: Callable[..., Evaluation]) -> None:
    with refuses(PolicyError, "policy.wrong-shape") as refused:
        run(policy__type="tests.unit.engine.test_inference:EMPTY", eval__n_episodes=4)
    assert "(0, 2)" in str(refused.value)


class Kept(Callback):
    """Keeps results."""

    def __init__(self) -> None:
        self.results: list[EpisodeResult] = []

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.results.append(result)


def test_two_batches_are_in_flight_at_once_where_there_are_two_policies() -> None:
    both = threading.Barrier(2, timeout=60)

    class Meeting(RecordingPolicy):
        def act(self, batch: Batch) -> Array:
            both.wait()
            return super().act(batch)

    replicas = [ThreadInference(Meeting(), BENCHMARK.action) for _ in range(2)]
    inference = ReplicatedInference(replicas)
    assert inference.capacity == 2
    attempts = [
        EpisodeAttempt(BENCHMARK.spec(BENCHMARK.tasks()[0], index, 0)) for index in range(2)
    ]
    tickets = [
        inference.submit(ActionRequestBatch([ActionRequest(one, 0)], {})) for one in attempts
    ]
    taken: dict[Any, ActionReply] = {}
    deadline = time.monotonic() + 60
    while len(taken) < 2 and time.monotonic() < deadline:
        answer = inference.take()
        taken |= dict([answer]) if answer else {}
        time.sleep(0.01)
    assert set(taken) == set(tickets)
    assert all(answer.error is None for answer in taken.values())
    inference.close()


def small_policies(kind: str) -> tuple[Fake, list[Policy]]:
    from proctor import plugins
    from proctor.benchmarks.base import interface_of

    sizes: dict[str, dict[str, Any]] = {
        "act": {
            "chunk_size": 8, "n_action_steps": 4, "dim_model": 32, "n_heads": 2,
            "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1,
        },
        "diffusion": {
            "horizon": 8, "n_action_steps": 3, "down_dims": [16, 32], "n_groups": 4,
            "diffusion_step_embed_dim": 16, "num_train_timesteps": 10, "num_inference_steps": 3,
            "spatial_softmax_num_keypoints": 4, "noise_scheduler_type": "DDIM",
        },
    }  # fmt: skip
    benchmark = Fake(FakeConfig(image_size=32, episode_length=12, endless=True, n_tasks=2))
    plugin = plugins.find_policy(kind)
    made = [
        plugin.make(plugin.config(device="cpu", **sizes[kind]), interface_of(benchmark))
        for _ in range(2)
    ]
    return benchmark, made


def played(benchmark: Fake, policies: list[Policy]) -> dict[Any, str | None]:
    """Run with one batch in flight per policy; return the digests."""
    config = benchmark._config
    inference = ReplicatedInference([ThreadInference(p, benchmark.action) for p in policies])
    spec, features = policies[0].spec, benchmark.features()
    settings = RolloutSettings(
        lambda: Fake(config),
        benchmark.action,
        flags=RolloutConfig(use_async_envs=False),
        features={key: features[key] for key in spec.inputs},
        n_obs_steps=spec.n_obs_steps,
    )
    specs = [benchmark.spec(task, i, 1000) for task in benchmark.tasks() for i in range(5)]
    kept = Kept()
    scheduler = Scheduler(specs, SchedulerLimits(max_batch=3))
    with Engine(settings, inference, scheduler, n_workers=5) as engine:
        engine.run([kept])
    inference.close()
    return {result.spec.key: result.digest for result in kept.results}


@pytest.mark.parametrize("kind", ["act", pytest.param("diffusion", marks=pytest.mark.slow)])
def test_two_replicas_of_a_policy_give_the_same_bits_as_one(kind: str) -> None:
    benchmark, policies = small_policies(kind)
    one = played(benchmark, policies[:1])
    assert len(one) == 10
    assert played(benchmark, policies) == one
