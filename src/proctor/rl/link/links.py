"""The two ends of the link between actors and a learner, and the link inside one process.

LearnerLink       what an actor uses: it sends transitions and reads the newest weights
LearnerEndpoint   what the learner uses: one object for all its actors, local or remote
InProcessLink     a LearnerLink to a LearnerEndpoint of the same process

A transition is acknowledged when the learner has stored it. Each actor numbers its transitions from
1. The endpoint drops a transition whose number it has seen, so an actor may send it again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proctor.errors import ConnectionLost
from proctor.features import Array
from proctor.rl.transitions import Transition

MAX_WAITING_BYTES = 512 * 2**20
"""Bytes of transitions that wait for the learner before actors have to wait."""
_MAX_INTERACTIONS = 10_000
_MAX_STARTS = 100_000
_RECORD_BYTES = 2048
"""Memory of a transition beside its arrays."""


@dataclass(frozen=True)
class ActorWeights:
    """Weights that the learner pushes to its actors."""

    modules: Mapping[str, Mapping[str, Array]]
    """LeRobot's payload: ``policy`` and, with a gripper critic, ``discrete_critic``."""
    version: int | None = None
    """The learner's count of updates; None from LeRobot's learner, which does not send it."""
    is_last: bool = False
    """Whether the learner's environment steps are spent: the training has ended."""


@dataclass(frozen=True)
class InteractionMessage:
    """An actor's summary of one episode."""

    episodic_reward: float
    interaction_step: int
    """Environment steps of the actor so far."""
    episode_intervention: bool
    intervention_rate: float
    """Share of the episode's steps with an intervention."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Other numbers by name, such as ``Policy frequency [Hz]`` and ``Success``."""


@dataclass(frozen=True)
class ReceivedTransition:
    """A transition at the learner, with its actor's name and number."""

    actor: str
    number: int | None
    """None from LeRobot's actors, which do not number their transitions."""
    transition: Transition


@dataclass(frozen=True)
class ActorPosition:
    """How much of one actor the learner has stored."""

    stored: int = 0
    """The highest stored number."""
    episodes: int = 0
    """Whole episodes; an episode ends with ``done`` or ``truncated``."""
    transitions: int = 0
    """The number of the last whole episode's last transition."""

    def after(self, number: int, transition: Transition) -> ActorPosition:
        """Return the position when the transition ``number`` is stored too."""
        if number <= self.stored:
            return self
        if transition.done or transition.truncated:
            return ActorPosition(number, self.episodes + 1, number)
        return ActorPosition(number, self.episodes, self.transitions)


class LearnerLink(Protocol):
    """An actor's link to its learner. The methods may be called from one thread."""

    def begin(self, *, replay: bool) -> ActorPosition:
        """Return what the learner has stored of this actor; the actor continues there.

        With ``replay`` the actor plays the unfinished episode again from its first step and sends
        the same transitions; the learner drops those that it has. Without, all that follows is new.
        """

    def send(self, transitions: Sequence[Transition]) -> None:
        """Queue transitions for the learner; the link keeps them until they are acknowledged."""

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until all sent transitions are acknowledged; return False at the timeout."""

    def newest_weights(self) -> ActorWeights | None:
        """Return the newest weights, or None if they were returned before."""

    def send_interaction(self, message: InteractionMessage) -> None:
        """Send the summary of an episode. It may be lost with the connection."""

    def send_start(self, start: str) -> None:
        """Send where an episode starts, before its transitions (``DemonstrationStart``)."""

    def close(self) -> None:
        """Close the link. Unacknowledged transitions stay in the link's folder, if any."""


class LearnerEndpoint:
    """The learner's end of the links to all its actors; thread-safe."""

    def __init__(
        self,
        positions: Mapping[str, ActorPosition] | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """``positions`` holds what a resumed learner has stored of each actor."""
        self._positions = dict(positions or {})
        self._seen = {actor: position.stored for actor, position in self._positions.items()}
        self._max_waiting_bytes, self._waiting_bytes = max_waiting_bytes, 0
        self._waiting: deque[ReceivedTransition] = deque()
        self._interactions: deque[InteractionMessage] = deque(maxlen=_MAX_INTERACTIONS)
        self._starts: deque[str] = deque(maxlen=_MAX_STARTS)
        self._weights: ActorWeights | None = None
        self._weights_count = 0
        self._closed = False
        self._changed = threading.Condition()

    def receive(
        self, actor: str, first: int | None, transitions: Sequence[Transition], timeout_s: float
    ) -> bool:
        """Queue an actor's transitions, numbered from ``first``; return False if there is no room.

        Known numbers are dropped. One batch that exceeds the limit alone waits for an empty queue.
        """
        size = sum(_nbytes(transition) for transition in transitions)

        def has_room() -> bool:
            fits = self._waiting_bytes + size <= self._max_waiting_bytes
            return self._closed or fits or not self._waiting

        with self._changed:
            if not self._changed.wait_for(has_room, timeout_s):
                return False
            self._check_open()
            numbers: Iterable[int | None] = [None] * len(transitions)
            if first is not None:
                numbers = range(first, first + len(transitions))
            for number, transition in zip(numbers, transitions, strict=True):
                if number is not None and number <= self._seen.get(actor, 0):
                    continue
                if number is not None:
                    self._seen[actor] = number
                self._waiting.append(ReceivedTransition(actor, number, transition))
                self._waiting_bytes += _nbytes(transition)
            self._changed.notify_all()
            return True

    def take(self, most: int | None = None, timeout_s: float = 0.0) -> list[ReceivedTransition]:
        """Return up to ``most`` transitions in the order of arrival; none after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, timeout_s)
            count = len(self._waiting) if most is None else min(most, len(self._waiting))
            taken = [self._waiting.popleft() for _ in range(count)]
            self._waiting_bytes -= sum(_nbytes(one.transition) for one in taken)
            self._changed.notify_all()
            return taken

    def acknowledge(self, received: Iterable[ReceivedTransition]) -> None:
        """Mark transitions as stored. Call it when they are on disk."""
        with self._changed:
            for one in received:
                if one.number is not None:
                    before = self._positions.get(one.actor, ActorPosition())
                    self._positions[one.actor] = before.after(one.number, one.transition)
            self._changed.notify_all()

    def position(self, actor: str) -> ActorPosition:
        """Return what is stored of an actor."""
        with self._changed:
            return self._positions.get(actor, ActorPosition())

    def wait_stored(self, actor: str, number: int, timeout_s: float) -> bool:
        """Wait until an actor's transitions up to ``number`` are stored; False at the timeout."""

        def stored() -> bool:
            return self._positions.get(actor, ActorPosition()).stored >= number

        with self._changed:
            self._changed.wait_for(lambda: stored() or self._closed, timeout_s)
            if not stored():
                self._check_open()
            return stored()

    def receive_interaction(self, message: InteractionMessage) -> None:
        """Queue an actor's summary; the oldest is dropped where the learner takes none."""
        with self._changed:
            self._interactions.append(message)

    def take_interactions(self) -> list[InteractionMessage]:
        """Return the summaries since the last call."""
        with self._changed:
            taken = list(self._interactions)
            self._interactions.clear()
            return taken

    def receive_start(self, start: str) -> None:
        """Queue where an actor's episode starts; the oldest is dropped where none are taken."""
        with self._changed:
            self._starts.append(start)

    def take_starts(self) -> list[str]:
        """Return the starts since the last call."""
        with self._changed:
            taken = list(self._starts)
            self._starts.clear()
            return taken

    def publish(self, weights: ActorWeights) -> None:
        """Push weights to the actors. Their arrays must not change afterwards."""
        with self._changed:
            self._weights = weights
            self._weights_count += 1
            self._changed.notify_all()

    def weights_after(self, count: int, timeout_s: float) -> tuple[ActorWeights | None, int]:
        """Return the newest weights and their count, or None if ``count`` is still the newest."""
        with self._changed:
            self._changed.wait_for(lambda: self._weights_count > count or self._closed, timeout_s)
            self._check_open()
            return (self._weights if self._weights_count > count else None), self._weights_count

    def close(self) -> None:
        """Stop receiving; calls that wait end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("the learner has stopped")


class InProcessLink:
    """A LearnerLink to a learner of the same process."""

    def __init__(self, endpoint: LearnerEndpoint, actor: str = "actor-0") -> None:
        self._endpoint, self._actor = endpoint, actor
        self._sent = endpoint.position(actor).stored
        self._weights_count = 0

    def begin(self, *, replay: bool) -> ActorPosition:
        """Return what the learner has stored of this actor; the actor continues there."""
        position = self._endpoint.position(self._actor)
        self._sent = position.transitions if replay else position.stored
        return position

    def send(self, transitions: Sequence[Transition]) -> None:
        """Queue transitions for the learner; wait while its queue is full."""
        first = self._sent + 1
        self._sent += len(transitions)
        while not self._endpoint.receive(self._actor, first, transitions, timeout_s=1.0):
            pass  # raises when the learner stops

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until the learner has stored all sent transitions; return False at the timeout."""
        return self._endpoint.wait_stored(self._actor, self._sent, timeout_s)

    def newest_weights(self) -> ActorWeights | None:
        """Return the newest weights, or None if they were returned before."""
        weights, self._weights_count = self._endpoint.weights_after(self._weights_count, 0.0)
        return weights

    def send_interaction(self, message: InteractionMessage) -> None:
        """Send the summary of an episode."""
        self._endpoint.receive_interaction(message)

    def send_start(self, start: str) -> None:
        """Send where an episode starts."""
        self._endpoint.receive_start(start)

    def close(self) -> None:
        """Do nothing: the learner's process holds the transitions."""


def wait_for_weights(link: LearnerLink, timeout_s: float) -> ActorWeights:
    """Wait for the learner's first weights."""
    deadline = time.monotonic() + timeout_s
    while True:
        weights = link.newest_weights()
        if weights is not None:
            return weights
        if time.monotonic() >= deadline:
            raise ConnectionLost(f"the learner sent no weights within {timeout_s:g} s")
        time.sleep(0.02)


def _nbytes(transition: Transition) -> int:
    arrays = [*transition.observation.values(), *transition.next_observation.values()]
    return _RECORD_BYTES + sum(array.nbytes for array in (*arrays, transition.action))
