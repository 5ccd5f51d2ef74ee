"""Real-time chunking (Black et al., 2025), for policies that follow a velocity to their actions.

While a policy thinks, the robot plays what is left of the old chunk. A new chunk that knows nothing
of it may begin elsewhere, and the robot jerks. So at every step of denoising the clean chunk that
is in sight is compared with what is left of the old one, and the velocity is bent towards it:

    1 for the steps that are played before the new chunk comes (the delay), then less and less, and
    0 from the execution horizon on: there the new chunk is free

As LeRobot computes it, whose correction goes through no gradient of the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from proctor.features import Array
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.rtc_config import RtcConfig

LEFT_OVER, HAS_LEFT = "rtc: left over", "rtc: has left"
"""What an episode's state holds for the next query: the rest of its chunk, and whether there is."""


@dataclass(frozen=True)
class ChunkGuidance:
    """How the chunks of a policy are led; it holds nothing of any episode."""

    rtc: RtcConfig
    chunk: int
    """Steps of a chunk."""
    action: int
    """Numbers of an action on the robot."""
    every: int
    """Steps from one query to the next."""
    delay: int
    """Steps that are played before the answer comes."""

    @property
    def recalled(self) -> dict[str, tuple[int, ...]]:
        """What a state hands to each query, for ``Network.recalled``."""
        return {LEFT_OVER: (self.chunk, self.action), HAS_LEFT: ()}

    @property
    def weights(self) -> list[float]:
        """How much each step of the old chunk's rest counts."""
        return prefix_weights(self.rtc, self.delay, self.chunk - self.every, self.chunk)

    def bend(
        self, velocity: Tensor, x: Tensor, time: float, recalled: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the velocity [B, T, A] at ``x`` and ``time`` (1: noise, 0: actions), led.

        ``recalled`` are a network's inputs, what the states hold among them; rows without a rest
        are left alone.
        """
        rest = recalled[LEFT_OVER].to(x.dtype)
        rest = F.pad(rest, (0, x.shape[-1] - rest.shape[-1]))
        steps = [torch.full((1,), w, dtype=x.dtype, device=x.device) for w in self.weights]
        counts = torch.cat(steps)[:, None] * recalled[HAS_LEFT].to(x.dtype)[:, None, None]
        error = (rest - (x - time * velocity)) * counts
        return velocity - strength(time, self.rtc.max_guidance_weight) * error

    def keep(self, chunks: Tensor, states: list[Any]) -> None:
        """Put what is left of ``chunks`` [B, T, A] at the next query into the states."""
        for chunk, state in zip(chunks, states, strict=True):
            rest: Array = np.zeros((self.chunk, self.action), np.float32)
            rest[: self.chunk - self.every] = chunk[self.every :].float().numpy()
            state[LEFT_OVER], state[HAS_LEFT] = rest, np.float32(1)


def make_guidance(
    rtc: RtcConfig | None, config: CheckpointConfig, chunk: int
) -> ChunkGuidance | None:
    """Return what leads the chunks of a policy; None where that is off, or nothing is left over."""
    delay = config.latency_steps or 0
    every = config.replan_steps - delay
    if rtc is None or every >= chunk:
        return None
    return ChunkGuidance(rtc, chunk, config.action_dim, every, delay)


def rtc_notes(rtc: RtcConfig | None, guide: ChunkGuidance | None) -> tuple[str, ...]:
    """Return what a user should hear of real-time chunking that is on and changes nothing."""
    if rtc is None or guide is not None:
        return ()
    return (
        "real-time chunking changes nothing: chunks are played to their end; lower "
        "--policy.n_action_steps, or give --eval.latency_steps",
    )


def prefix_weights(rtc: RtcConfig, delay: int, left: int, chunk: int) -> list[float]:
    """Return a weight for each of ``chunk`` steps, ``left`` of which the old one has."""
    end = min(rtc.execution_horizon, left, chunk)
    start = min(delay, end)
    inner = end - start
    if rtc.prefix_attention_schedule == "ZEROS":
        falling = [0.0] * inner
    elif rtc.prefix_attention_schedule == "ONES":
        falling = [1.0] * inner
    else:
        falling = [1 - (n + 1) / (inner + 1) for n in range(inner)]
        if rtc.prefix_attention_schedule == "EXP":
            falling = [w * math.expm1(w) / (math.e - 1) for w in falling]
    return [1.0] * start + falling + [0.0] * (chunk - end)


def strength(time: float, most: float) -> float:
    """Return how hard a velocity is bent at ``time``: most at noise, and again near the actions."""
    done = 1 - time
    if done <= 0 or time <= 0:
        return most
    return min(most, time / done * (time**2 + done**2) / time**2)
