"""Several replicas of a policy, or concurrent calls of one policy: several batches in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from proctor.engine.inference import (
    ActionReply,
    ActionRequestBatch,
    EpisodeAttempt,
    Inference,
    Ticket,
)
from proctor.features import Feature


class ReplicatedInference:
    """Replicas of one policy: a batch goes to the replica with the fewest batches in flight.

    An episode's state may move between replicas from one query to the next. The replica that
    answered last ends the episode, after that answer, so no two replicas touch a state at once.
    """

    def __init__(self, replicas: Sequence[Inference]) -> None:
        self._replicas = replicas
        self._in_flight: Counter[int] = Counter()
        self._last: dict[EpisodeAttempt, int] = {}
        self.capacity = sum(replica.capacity for replica in replicas)

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever any replica has a reply."""
        for replica in self._replicas:
            replica.attach(wake)

    def warm_up(self, features: Mapping[str, Feature], most: int) -> None:
        """Warm up all replicas."""
        for replica in self._replicas:
            replica.warm_up(features, most)

    def submit(self, batch: ActionRequestBatch) -> Ticket:
        """Submit ``batch`` to the replica with the fewest batches in flight."""
        chosen = min(range(len(self._replicas)), key=lambda number: self._in_flight[number])
        self._in_flight[chosen] += 1
        for request in batch.requests:
            self._last[request.attempt] = chosen
        return chosen, self._replicas[chosen].submit(batch)

    def take(self) -> tuple[Ticket, ActionReply] | None:
        """Return a reply of any replica, or None."""
        for number, replica in enumerate(self._replicas):
            taken = replica.take()
            if taken is not None:
                self._in_flight[number] -= 1
                return (number, taken[0]), taken[1]
        return None

    def end(self, attempt: EpisodeAttempt) -> None:
        """End the episode on the replica that answered it last."""
        last = self._last.pop(attempt, None)
        if last is not None:
            self._replicas[last].end(attempt)

    def close(self) -> None:
        """Close all replicas in parallel, even if one fails to close."""
        with ThreadPoolExecutor(len(self._replicas)) as threads:
            closing = [threads.submit(replica.close) for replica in self._replicas]
        for closed in closing:
            closed.result()
