"""Run one actor: make its environment, policy and interventions, and drive until the end."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from proctor.callbacks.progress import ProgressLine
from proctor.config.online_training import OnlineTrainConfig
from proctor.errors import ConnectionLost, exit_code_of
from proctor.rl.actor.actor import Actor, ActorSettings
from proctor.rl.actor.policy import ActorPolicy
from proctor.rl.environment.setup import (
    environment_interface,
    make_environment,
    make_intervention,
)
from proctor.rl.link.links import ActorWeights, InteractionMessage, LearnerLink
from proctor.rl.policy_parts import TrainedPolicy, make_policy
from proctor.rl.setup import learner_address
from proctor.training.metrics.stopping import StopRequests

_RECENT = 20
"""Episodes whose reward is averaged."""


class ActorProgress:
    """Shows steps, episodes, reward and interventions."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._line = ProgressLine(console)
        self._recent: deque[InteractionMessage] = deque(maxlen=_RECENT)
        self._episodes = 0
        self._began: tuple[float, int] | None = None
        """Time and steps at the end of the first episode."""
        self.text = ""

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_episode(self, message: InteractionMessage, pending: int) -> None:
        """Show an episode's end; ``pending`` transitions wait for the learner's answer."""
        self._episodes += 1
        self._recent.append(message)
        n = len(self._recent)
        parts = [
            f"step {message.interaction_step:,}",
            f"{self._episodes:,} episode{'s' * (self._episodes != 1)}",
            f"reward {sum(one.episodic_reward for one in self._recent) / n:.3g}",
            self._rate(message.interaction_step),
        ]
        if helped := sum(one.intervention_rate for one in self._recent) / n:
            parts.append(f"interventions {helped:.0%}")
        if pending:
            parts.append(f"{pending:,} transitions not yet stored")
        self.text = "  ".join(part for part in parts if part)
        self._line.show(self.text)

    def close(self) -> None:
        """Leave the last text on the screen."""
        self._line.close(self.text)

    def _rate(self, steps: int) -> str:
        now = self._clock()
        if self._began is None:
            self._began = now, steps
        began, first = self._began
        return f"{(steps - first) / (now - began):,.1f} steps/s" if now > began else ""


if TYPE_CHECKING:
    from proctor.rl.link.learner_client import GrpcLearnerLink


def run_actor(
    config: OnlineTrainConfig,
    link: LearnerLink,
    index: int,
    policy: TrainedPolicy | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    online_steps: int | None = None,
) -> None:
    """Drive an environment and send transitions, until the learner stops.

    ``online_steps`` ends the actor of a learner that never ends, as LeRobot's.
    """
    torch.set_num_threads(1)  # the learner needs the other cores
    policy = policy or make_policy(config, environment_interface(config))
    env = make_environment(config, tuple(policy.config.input_features))
    try:
        intervention = make_intervention(config, env)
        try:
            settings = ActorSettings(
                seed=config.seed,
                index=index,
                lockstep=config.rl.lockstep,
                online_steps=online_steps,
                terminate_on_success=config.processor.reset.terminate_on_success,
            )
            Actor(env, ActorPolicy(policy.parts), intervention, link, settings).run(should_stop)
        finally:
            intervention.close()
    finally:
        env.close()


def run_remote_actor(config: OnlineTrainConfig, console: Console) -> int:
    """Run an actor that is connected to a learner by gRPC; return the exit code.

    ``console`` shows its progress.
    """
    from proctor.rl.learner.channel import LearnerAddress
    from proctor.rl.link.learner_client import GrpcLearnerLink, LinkSettings

    policy = make_policy(config, environment_interface(config))
    address = LearnerAddress(*learner_address(config, policy), config.api_key, config.tls)
    progress = ActorProgress(console)
    with closing(progress), StopRequests(why="") as stop:

        def stopped() -> bool:
            return stop.requested is not None

        say = progress.say
        link = GrpcLearnerLink(address, LinkSettings(folder=config.output_dir), say, stopped)
        say(f"{link.actor} is connected to {address}")
        index = zlib.crc32(link.actor.encode())  # its episodes differ from those of other actors
        remote = _RemoteLink(link, progress)
        try:
            with stop.deferring():
                limit = policy.config.online_steps if link.is_lerobot else None
                run_actor(config, remote, index, policy, stopped, limit)
        except TrainingEnded:
            say("the training has ended")
            link.abandon()
        except ConnectionLost:
            if not stopped():
                raise
        finally:
            link.close()
            if link.pending and config.output_dir is not None:
                kept = f"{link.pending:,} transitions wait in {config.output_dir}"
                say(f"{kept}; the same command sends them to the learner")
    return 0 if stop.requested is None else exit_code_of(KeyboardInterrupt(stop.requested))


class TrainingEnded(ConnectionLost):
    """The learner has spent its environment steps."""


class _RemoteLink:
    """A link that shows the actor's progress, and ends the actor with the training."""

    def __init__(self, link: GrpcLearnerLink, progress: ActorProgress) -> None:
        self._link, self._progress = link, progress
        self.begin, self.send = link.begin, link.send
        self.wait_acknowledged, self.close = link.wait_acknowledged, link.close
        self.send_start = link.send_start

    def send_interaction(self, message: InteractionMessage) -> None:
        """Send the summary of an episode, and show it."""
        self._link.send_interaction(message)
        self._progress.on_episode(message, self._link.pending)

    def newest_weights(self) -> ActorWeights | None:
        """Return the newest weights, or None if they were returned before.

        Raises:
            TrainingEnded: these are the last ones.
        """
        weights = self._link.newest_weights()
        if weights is not None and weights.is_last:
            raise TrainingEnded("the training has ended")
        return weights
