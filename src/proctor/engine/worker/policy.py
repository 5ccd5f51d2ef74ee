"""The policy of a worker, for policies that run inside worker processes."""

from __future__ import annotations

from typing import cast

from proctor.benchmarks.base import Benchmark, SimFactory, interface_of
from proctor.engine.action_queue import ActionQueue
from proctor.engine.chunks import blame_policy, checked_chunks
from proctor.engine.worker.episode import ObservedEpisode
from proctor.engine.worker.settings import WorkerSettings
from proctor.errors import PolicyError
from proctor.features import Array
from proctor.fingerprint import changed_fields, describe_changes, json_round_trip
from proctor.policies.base import Batch, Policy, Query


class WorkerPolicy:
    """Runs whole episodes with a policy that is made in this worker."""

    def __init__(self, settings: WorkerSettings, benchmark: SimFactory) -> None:
        self._action, self._latency = settings.action, settings.latency
        self._policy = _make_policy(settings, cast("Benchmark", benchmark))

    def play(
        self, episode: ObservedEpisode, action_queue: ActionQueue, window: dict[str, Array]
    ) -> None:
        """Run the episode to its end; the policy reads ``window``."""
        policy = self._policy
        with blame_policy(policy, f"at the beginning of {episode.spec}"):
            state = policy.new_episode(episode.spec)
        observations = {key: array[None] for key, array in window.items()}
        episode.follows_expert = policy.spec.follows_expert and not self._latency
        try:
            while not episode.ended:
                batch = Batch([Query(episode.spec, episode.steps, state)], observations)
                chunk = checked_chunks(policy, batch, self._action)[0]
                episode.run(action_queue.next_actions(chunk))
        finally:
            with blame_policy(policy, f"at the end of {episode.spec}"):
                policy.end_episode(state)


def _make_policy(settings: WorkerSettings, benchmark: Benchmark) -> Policy:
    """Make the policy."""
    assert settings.make_policy is not None
    policy = settings.make_policy(interface_of(benchmark))
    if settings.policy_protocol is not None:
        changed = changed_fields(settings.policy_protocol, json_round_trip(policy.protocol()))
        if changed:
            raise PolicyError(
                f"the policy changed while the run lasted ({describe_changes(changed)})",
                code="policy.changed",
            )
    return policy
