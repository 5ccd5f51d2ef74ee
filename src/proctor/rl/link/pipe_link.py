"""The link between an actor process and the learner process that started it, over a pipe.

Both processes run this program, so messages are pickled. Actors of other machines connect by gRPC
(``learner_service``), which executes nothing that it receives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from proctor.errors import ConnectionLost
from proctor.rl.link.links import (
    ActorPosition,
    ActorWeights,
    InProcessLink,
    InteractionMessage,
    LearnerEndpoint,
)
from proctor.rl.transitions import Transition

_STOPPED = "the learner has stopped"


class PipeLink:
    """A LearnerLink of an actor process to the learner at the other end of a pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, *, replay: bool) -> ActorPosition:
        """Return what the learner has stored of this actor."""
        found: ActorPosition = self._call("begin", replay)
        return found

    def send(self, transitions: Sequence[Transition]) -> None:
        """Hand transitions to the learner; wait while its queue is full."""
        self._call("send", list(transitions))

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until all sent transitions are on disk; return False at the timeout."""
        return bool(self._call("wait_acknowledged", timeout_s))

    def newest_weights(self) -> ActorWeights | None:
        """Return the newest weights, or None if they were returned before."""
        weights: ActorWeights | None = self._call("newest_weights")
        return weights

    def send_interaction(self, message: InteractionMessage) -> None:
        """Send the summary of an episode."""
        self._call("send_interaction", message)

    def send_start(self, start: str) -> None:
        """Send where an episode starts."""
        self._call("send_start", start)

    def close(self) -> None:
        """Close the pipe."""
        self._connection.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the learner's end."""
        try:
            self._connection.send((method, arguments))
            result, stopped = self._connection.recv()
        except (EOFError, OSError):
            raise ConnectionLost(_STOPPED) from None
        if stopped:
            raise ConnectionLost(_STOPPED)
        return result


def serve_pipe(endpoint: LearnerEndpoint, actor: str, connection: Connection) -> threading.Thread:
    """Answer an actor's calls on a thread, until the actor or the learner ends."""
    link = InProcessLink(endpoint, actor)
    methods: dict[str, Callable[..., Any]] = {
        "begin": lambda replay: link.begin(replay=replay),
        "send": link.send,
        "wait_acknowledged": link.wait_acknowledged,
        "newest_weights": link.newest_weights,
        "send_interaction": link.send_interaction,
        "send_start": link.send_start,
    }

    def serve() -> None:
        with connection:
            while True:
                try:
                    method, arguments = connection.recv()
                    connection.send((methods[method](*arguments), False))
                except ConnectionLost:
                    connection.send((None, True))
                    return
                except (EOFError, OSError):
                    return  # the actor has ended

    thread = threading.Thread(target=serve, name=f"link of {actor}", daemon=True)
    thread.start()
    return thread
