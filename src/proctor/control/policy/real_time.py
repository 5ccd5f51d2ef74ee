"""Inference while the robot moves: the old chunk is executed until the new one arrives.

The request is made ``latency`` steps before the old chunk ends, from the observation of that step.
The first ``latency`` actions of the reply lie in the past when they are needed, and are never
executed. ``--eval.latency_steps`` simulates the same schedule, so a policy can be evaluated with
its latency before it drives a robot.

If a reply is late, the robot holds its last target, and as many actions of the reply are skipped.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from proctor.control.policy.driver import PolicyDriver
from proctor.errors import PolicyError
from proctor.features import Array
from proctor.robots.base import Action, RobotObservation
from proctor.types import EpisodeSpec

_MARGIN = 1.2
"""Factor on the longest measured inference: the next one may take a little longer."""


def latency_steps(seconds: float, fps: float) -> int:
    """Return the control steps that pass during an inference of ``seconds``, at least 1."""
    return max(1, math.ceil(seconds * _MARGIN * fps))


class RealTimeDriver:
    """Drives one robot with one policy; a thread runs the inference.

    ``held`` counts the steps of the session in which the robot waited for a late reply.
    """

    def __init__(self, driver: PolicyDriver, latency: int, executed: int | None = None) -> None:
        """Ask ``latency`` steps before the end of a chunk, of which ``executed`` actions count.

        None: all actions of a chunk count.
        """
        self._driver, self._latency, self._executed = driver, latency, executed
        self._actions: deque[Array] = deque()
        self._reply: Future[Array] | None = None
        self._late = 0
        self._last: Array | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy-inference")
        self.held = 0

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Begin an episode; a request of the episode before is waited for and forgotten."""
        self._forget()
        self._driver.start_episode(spec)

    def act(self, observation: RobotObservation) -> Action:
        """Return the action of this control step; only the first one of an episode waits."""
        self._driver.observe(observation)
        if self._last is None:
            self._actions.extend(self._checked(self._driver.answer(self._driver.request())))
        elif not self._actions:
            self._take_reply()
        if self._reply is None and len(self._actions) <= self._latency:
            self._reply = self._thread.submit(self._driver.answer, self._driver.request())
        self._driver.count_step()
        self._last = self._actions.popleft() if self._actions else self._last
        assert self._last is not None
        return self._driver.channels.action(self._last)

    def wait_for_reply(self) -> None:
        """Wait until no inference is running; ``act`` raises its failure."""
        if self._reply is not None:
            self._reply.exception()

    def _take_reply(self) -> None:
        """Queue the rest of the reply; without one yet, count a held step."""
        assert self._reply is not None, "a request precedes the end of a chunk"
        if not self._reply.done():
            self._late += 1
            self.held += 1
            return
        chunk, self._reply = self._checked(self._reply.result()), None
        past = min(self._latency + self._late, len(chunk) - 1)
        self._actions.extend(chunk[past:])
        self._late = 0

    def _checked(self, chunk: Array) -> Array:
        if len(chunk) <= self._latency:
            raise PolicyError(
                f"a chunk of {len(chunk)} actions is over before the next one comes: inference "
                f"takes {self._latency} steps; execute more actions per chunk "
                "(--policy.n_action_steps), lower --fps, or use a faster device",
                code="policy.chunk-too-short",
            )
        return chunk[: self._executed]

    def _forget(self) -> None:
        if self._reply is not None and not self._reply.cancel():
            self.wait_for_reply()  # its failure no longer matters
        self._reply = None
        self._actions.clear()
        self._last, self._late = None, 0

    def end_episode(self) -> None:
        """End the episode, after a running inference."""
        self._forget()
        self._driver.end_episode()

    def close(self) -> None:
        """End the episode and the thread, and release the policy."""
        self._forget()
        self._thread.shutdown()
        self._driver.close()
