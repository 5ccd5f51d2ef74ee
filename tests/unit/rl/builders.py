"""Transitions and a learner for tests of the links."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from proctor.rl.link.links import LearnerEndpoint, ReceivedTransition
from proctor.rl.transitions import Transition


def transition(number: float, size: int = 3, *, done: bool = False) -> Transition:
    state = np.full(size, number, np.float32)
    return Transition(
        {"observation.state": state},
        np.asarray([number, -number], np.float32),
        number,
        {"observation.state": state + 1},
        done=done,
        complementary_info={"discrete_penalty": -0.5, "is_intervention": 1.0},
    )


def same_transition(one: Transition, other: Transition) -> bool:
    return (
        all(
            list(ours) == list(theirs)
            and all(
                ours[key].dtype == theirs[key].dtype and np.array_equal(ours[key], theirs[key])
                for key in ours
            )
            for ours, theirs in (
                (one.observation, other.observation),
                (one.next_observation, other.next_observation),
            )
        )
        and np.array_equal(one.action, other.action)
        and (one.reward, one.done, one.truncated) == (other.reward, other.done, other.truncated)
        and one.complementary_info == other.complementary_info
    )


class StoringLearner:
    """A learner that stores what its endpoint receives, in a thread."""

    def __init__(
        self,
        endpoint: LearnerEndpoint,
        on_stored: Callable[[ReceivedTransition], None] = lambda _: None,
    ) -> None:
        self.stored: list[ReceivedTransition] = []
        self._endpoint, self._on_stored = endpoint, on_stored
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            taken = self._endpoint.take(timeout_s=0.02)
            for one in taken:
                self.stored.append(one)
                self._on_stored(one)
            self._endpoint.acknowledge(taken)

    @property
    def rewards(self) -> list[float]:
        return [one.transition.reward for one in self.stored]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
