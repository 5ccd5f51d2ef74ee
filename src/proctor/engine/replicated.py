"""Several policies that are the same, or one that takes several calls at once, each on a thread of
its own: so many batches in flight."""

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
    """Several inferences whose policies are the same: a batch goes to the one with least to do.

    An episode's state may go from one to another between two queries. It is ended by the one that
    answered last, after that answer: nothing happens to a state in two places at once.
    """

    def __init__(self, replicas: Sequence[Inference]) -> None:
        self._replicas = replicas
        self._in_flight: Counter[int] = Counter()
        self._last: dict[EpisodeAttempt, int] = {}
        self.capacity = sum(replica.capacity for replica in replicas)

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there is something to take from any."""
        for replica in self._replicas:
            replica.attach(wake)

    def warm_up(self, features: Mapping[str, Feature], most: int) -> None:
        """Warm all of them up."""
        for replica in self._replicas:
            replica.warm_up(features, most)

    def submit(self, batch: ActionRequestBatch) -> Ticket:
        """Hand ``batch`` to the replica with the fewest in flight."""
        chosen = min(range(len(self._replicas)), key=lambda number: self._in_flight[number])
        self._in_flight[chosen] += 1
        for request in batch.requests:
            self._last[request.attempt] = chosen
        return chosen, self._replicas[chosen].submit(batch)

    def take(self) -> tuple[Ticket, ActionReply] | None:
        """Return an answer of any replica, if there is one."""
        for number, replica in enumerate(self._replicas):
            taken = replica.take()
            if taken is not None:
                self._in_flight[number] -= 1
                return (number, taken[0]), taken[1]
        return None

    def end(self, attempt: EpisodeAttempt) -> None:
        """End the episode where it was asked for last."""
        last = self._last.pop(attempt, None)
        if last is not None:
            self._replicas[last].end(attempt)

    def close(self) -> None:
        """Close all of them at once; whatever fails to close, the rest is closed too."""
        with ThreadPoolExecutor(len(self._replicas)) as threads:
            closing = [threads.submit(replica.close) for replica in self._replicas]
        for closed in closing:
            closed.result()
