"""An actor's link to a learner over gRPC: Proctor's own learner, or LeRobot's.

Two threads work for the link. One sends what is queued, in order, and tries again while the learner
is away. The other receives weights. A transition leaves the queue when the learner has answered:
Proctor's learner answers when it is stored, LeRobot's when it is received.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proctor.errors import ConnectionLost, ProctorError, ProtocolError, UsageError
from proctor.policies.remote.address import is_printable_ascii
from proctor.protocols import actor_learner as protocol
from proctor.rl.actor.pending_transitions import PendingFolder
from proctor.rl.learner.channel import ChannelLost, LearnerAddress, LearnerChannel
from proctor.rl.link.links import ActorPosition, ActorWeights, InteractionMessage
from proctor.rl.link.payloads import (
    decode_weights,
    encode_interaction,
    encode_start,
    encode_transitions,
)
from proctor.rl.transitions import Transition

_MAX_BATCH = 200
"""Transitions of one call: with two 128x128 cameras about 80 MB as float32."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_POLL_S = 0.5
_TOLD_AFTER_S = 2.0
"""Seconds after which the actor says that the learner is lost."""
_MAX_INTERACTIONS = 1000
_JOIN_S = 5.0


@dataclass(frozen=True)
class LinkSettings:
    """Settings of an actor's link."""

    actor: str = ""
    """The actor's name, unique among the learner's actors; empty for a random one."""
    folder: Path | None = None
    """Keeps transitions without acknowledgement, and the name, over a restart of the actor."""
    connect_s: float = 60.0
    """How long to try to reach the learner at the start."""
    give_up_s: float = 600.0
    """How long a lost learner may be away."""
    call_s: float = 330.0
    """Longest time of one call; the learner stores the transitions within it."""
    close_s: float = 5.0
    """How long ``close`` waits for the last answers."""
    max_pending_bytes: int = 512 * 2**20


@dataclass(frozen=True)
class _Batch:
    """Transitions that the learner has not acknowledged."""

    first: int
    count: int
    payload: bytes = field(repr=False)

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class GrpcLearnerLink:
    """A LearnerLink over gRPC."""

    def __init__(
        self,
        address: LearnerAddress,
        settings: LinkSettings | None = None,
        say: Callable[[str], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect to the learner; ``say`` gets a line when the actor waits for it."""
        self._settings = settings or LinkSettings()
        name = self._settings.actor or f"{socket.gethostname()[:32]}-{secrets.token_hex(4)}"
        self._folder = None
        if self._settings.folder is not None:
            self._folder = PendingFolder(self._settings.folder, name)
            name = self._folder.actor
        if not is_printable_ascii(name) or not 0 < len(name) <= protocol.MAX_NAME:
            raise UsageError(
                f"{name!r} is not an actor's name (1 to {protocol.MAX_NAME} ASCII characters)",
                code="rl.invalid-actor-name",
            )
        self.actor = name
        self._address, self._say, self._should_stop = address, say, should_stop
        self._channel = LearnerChannel(address, name)
        self._state = threading.Condition()
        self._batches: deque[_Batch] = deque()
        self._interactions: deque[bytes] = deque(maxlen=_MAX_INTERACTIONS)
        self._pending_bytes = 0
        self._weights: ActorWeights | None = None
        self._failure: ProctorError | None = None
        self._closing = False
        self._position = self._connect()
        self._load_pending()
        self._sent = max(self._position.stored, self._batches[-1].last if self._batches else 0)
        self._threads = [
            threading.Thread(target=work, name=f"proctor-{what}", daemon=True)
            for what, work in (("send", self._send_all), ("weights", self._receive_weights))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_lerobot(self) -> bool:
        """Whether the learner is LeRobot's."""
        return self._channel.is_lerobot

    @property
    def pending(self) -> int:
        """Transitions that the learner has not acknowledged."""
        with self._state:
            return sum(batch.count for batch in self._batches)

    def begin(self, *, replay: bool) -> ActorPosition:
        """Return what the learner has stored of this actor; the actor continues there."""
        if replay:
            deadline = time.monotonic() + self._settings.give_up_s
            while not self.wait_acknowledged(_POLL_S):
                if self._should_stop():
                    raise ConnectionLost("a signal stopped the actor")
                if time.monotonic() > deadline:
                    raise ConnectionLost(f"the learner at {self._address} stores no transitions")
            self._position = self._connect()
            self._sent = self._position.transitions
        return self._position

    def send(self, transitions: Sequence[Transition]) -> None:
        """Queue transitions; wait while the queue is full."""
        for start in range(0, len(transitions), _MAX_BATCH):
            self._queue(transitions[start : start + _MAX_BATCH])

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until the learner has answered all transitions; return False at the timeout."""
        with self._state:
            self._state.wait_for(lambda: not self._batches or self._failure, timeout_s)
            self._raise_failure()
            return not self._batches

    def newest_weights(self) -> ActorWeights | None:
        """Return the newest weights, or None if they were returned before."""
        with self._state:
            self._raise_failure()
            weights, self._weights = self._weights, None
            return weights

    def send_interaction(self, message: InteractionMessage) -> None:
        """Queue the summary of an episode."""
        with self._state:
            self._interactions.append(encode_interaction(message))
            self._state.notify_all()

    def send_start(self, start: str) -> None:
        """Queue where an episode starts; LeRobot's learner gets none."""
        if self.is_lerobot:
            return
        with self._state:
            self._interactions.append(encode_start(start))
            self._state.notify_all()

    def abandon(self) -> None:
        """Drop what is not acknowledged: the training has ended and needs no more transitions."""
        with self._state:
            for batch in self._batches:
                if self._folder is not None:
                    self._folder.remove(batch.first)
            self._batches.clear()
            self._interactions.clear()
            self._state.notify_all()

    def close(self) -> None:
        """Send what is queued, for a few seconds, and close the channel."""
        with self._state:
            self._state.wait_for(
                lambda: not (self._batches or self._interactions) or self._failure,
                self._settings.close_s,
            )
            self._closing = True
            self._state.notify_all()
        self._channel.close()
        for thread in self._threads:
            thread.join(_JOIN_S)
        if self._folder is not None:
            self._folder.close()
        elif self.pending:
            raise ConnectionLost(f"the learner did not acknowledge {self.pending} transitions")

    def _queue(self, transitions: Sequence[Transition]) -> None:
        payload = encode_transitions(transitions, for_lerobot=self.is_lerobot)
        batch = _Batch(self._sent + 1, len(transitions), payload)
        if self._folder is not None:
            self._folder.add(batch.first, batch.count, payload)
        self._sent = batch.last
        with self._state:
            self._state.wait_for(lambda: self._has_room(len(payload)) or self._failure)
            self._raise_failure()
            self._batches.append(batch)
            self._pending_bytes += len(payload)
            self._state.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._batches or self._pending_bytes + size <= self._settings.max_pending_bytes

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _connect(self) -> ActorPosition:
        """Ask the learner for the actor's position, until it answers."""
        deadline, wait_s = time.monotonic() + self._settings.connect_s, _FIRST_WAIT_S
        while True:
            try:
                return self._channel.ready()
            except ChannelLost as error:
                if time.monotonic() + wait_s > deadline:
                    raise UsageError(
                        f"no learner answers at {self._address} ({error}): start it first, or "
                        "check the address and --tls",
                        code="rl.learner-unreachable",
                    ) from None
                if wait_s == _FIRST_WAIT_S:
                    limit = f"{self._settings.connect_s:g} s"
                    self._say(f"waiting up to {limit} for the learner at {self._address}")
            except ProtocolError as error:
                raise UsageError(str(error), code="rl.learner-refused") from None
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _load_pending(self) -> None:
        """Queue the transitions of the folder that the learner does not have."""
        if self._folder is None:
            return
        for first, count, payload in self._folder.read():
            batch = _Batch(first, count, payload)
            if batch.last <= self._position.stored:
                self._folder.remove(first)
                continue
            self._batches.append(batch)
            self._pending_bytes += len(payload)

    def _send_all(self) -> None:
        """Send what is queued; runs in a thread."""
        try:
            while True:
                with self._state:
                    self._state.wait_for(
                        lambda: self._batches or self._interactions or self._closing
                    )
                    if self._closing:
                        return
                    batch = self._batches[0] if self._batches else None
                    message = self._interactions[0] if self._interactions else b""
                if message:  # first: a start comes before its transitions
                    self._keep_trying(protocol.INTERACTIONS, message, None)
                    with self._state:
                        if self._interactions:
                            self._interactions.popleft()
                        self._state.notify_all()
                elif batch is not None:
                    self._keep_trying(protocol.TRANSITIONS, batch.payload, batch.first)
                    self._acknowledged(batch)
        except _LinkClosed:
            return
        except ProctorError as error:
            with self._state:
                self._failure = error
                self._state.notify_all()

    def _keep_trying(self, method: str, payload: bytes, first: int | None) -> None:
        """Call until the learner answers."""
        lost_at, wait_s, told = None, _FIRST_WAIT_S, False
        while True:
            try:
                self._channel.send(method, payload, first, self._settings.call_s)
                if told:
                    self._say(f"connected to {self._address} again")
                return
            except ChannelLost as error:
                lost_at = lost_at or time.monotonic()
                lost_s = time.monotonic() - lost_at
                if lost_s > self._settings.give_up_s:
                    raise ConnectionLost(
                        f"the learner at {self._address} is lost: {error}"
                    ) from None
            if not told and lost_s > _TOLD_AFTER_S:
                self._say_lost()
                told = True
            with self._state:
                if self._state.wait_for(lambda: self._closing, wait_s):
                    raise _LinkClosed
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _say_lost(self) -> None:
        kept = (
            ""
            if self._settings.folder is None
            else f"; transitions wait in {self._settings.folder}"
        )
        self._say(
            f"the learner at {self._address} does not answer: trying for up to "
            f"{self._settings.give_up_s:g} s{kept}"
        )

    def _acknowledged(self, batch: _Batch) -> None:
        if self._folder is not None:
            self._folder.remove(batch.first)
        with self._state:
            if self._batches:  # else abandoned meanwhile
                self._batches.popleft()
                self._pending_bytes -= len(batch.payload)
            self._state.notify_all()

    def _receive_weights(self) -> None:
        """Receive weights, and connect again when the stream ends; runs in a thread."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                for payload in self._channel.parameters():
                    weights = decode_weights(payload)
                    wait_s = _FIRST_WAIT_S
                    with self._state:
                        self._weights = weights
            except ChannelLost:
                pass  # the sending thread reports a learner that stays away
            except ProtocolError as error:
                with self._state:
                    self._failure = self._failure or error
                    self._state.notify_all()
                return
            with self._state:
                if self._state.wait_for(lambda: self._closing, wait_s):
                    return
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


class _LinkClosed(Exception):
    """The link was closed while it tried to send."""
