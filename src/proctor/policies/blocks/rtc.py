"""Real-time chunking (Black et al., 2025) for flow matching policies.

During inference the robot executes the rest of the old chunk. A new chunk that ignores the old one
may start elsewhere, and the robot jerks. So every denoising step compares the current estimate of
the clean chunk with the rest of the old chunk, and corrects the velocity towards it. The weights
of the correction are

    1 for the steps that are executed before the new chunk arrives (the delay),
    decreasing after that, and 0 from the execution horizon on.

The computation is LeRobot's, which does not differentiate through the network.
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
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.lerobot.config.mixins import RtcConfig
from proctor.policies.runtime.network import Network

LEFT_OVER, HAS_LEFT = "rtc: left over", "rtc: has left"
"""Keys of an episode's state: the rest of its last chunk, and whether there is one."""


@dataclass(frozen=True)
class ChunkGuidance:
    """Guides new chunks towards the old ones; stateless."""

    rtc: RtcConfig
    chunk: int
    """Length of a chunk."""
    action: int
    """Size of the robot's action."""
    every: int
    """Steps between two queries."""
    delay: int
    """Steps that are executed before the reply arrives."""

    @property
    def episode_inputs(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the state's entries, for ``Network.episode_inputs``."""
        return {LEFT_OVER: (self.chunk, self.action), HAS_LEFT: ()}

    @property
    def weights(self) -> list[float]:
        """Weight of the correction at each step of the chunk."""
        return prefix_weights(self.rtc, self.delay, self.chunk - self.every, self.chunk)

    def bend(
        self, velocity: Tensor, x: Tensor, time: float, recalled: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the corrected velocity [B, T, A] at ``x`` and ``time`` (1: noise, 0: actions).

        ``recalled`` are the network's inputs, the episode state among them. Rows without an old
        chunk are unchanged.
        """
        rest = recalled[LEFT_OVER].to(x.dtype)
        rest = F.pad(rest, (0, x.shape[-1] - rest.shape[-1]))
        steps = [torch.full((1,), w, dtype=x.dtype, device=x.device) for w in self.weights]
        counts = torch.cat(steps)[:, None] * recalled[HAS_LEFT].to(x.dtype)[:, None, None]
        error = (rest - (x - time * velocity)) * counts
        return velocity - strength(time, self.rtc.max_guidance_weight) * error

    def keep(self, chunks: Tensor, states: list[Any]) -> None:
        """Save into the states the rest of ``chunks`` [B, T, A] at the next query."""
        for chunk, state in zip(chunks, states, strict=True):
            rest: Array = np.zeros((self.chunk, self.action), np.float32)
            rest[: self.chunk - self.every] = chunk[self.every :].float().numpy()
            state[LEFT_OVER], state[HAS_LEFT] = rest, np.float32(1)


class GuidedNetwork(Network):
    """A flow matching network that supports real-time chunking."""

    guide: ChunkGuidance | None = None

    def use_guidance(self, rtc: RtcConfig | None, config: CheckpointConfig, chunk: int) -> None:
        """Guide chunks of ``chunk`` steps if ``rtc`` says so, and note it if that has no effect."""
        self.guide = make_guidance(rtc, config, chunk)
        if self.guide is not None:
            self.episode_inputs, self.steps_per_query = self.guide.episode_inputs, self.guide.every
        self.notes = rtc_notes(rtc, self.guide)

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """With real-time chunking, store the rest of each chunk for the episode's next query."""
        if self.guide is not None:
            self.guide.keep(chunks, states)
        return chunks


def make_guidance(
    rtc: RtcConfig | None, config: CheckpointConfig, chunk: int
) -> ChunkGuidance | None:
    """Return the guidance of a policy; None if it is off, or chunks are executed to their end."""
    delay = config.latency_steps or 0
    every = config.replan_steps - delay
    if rtc is None or every >= chunk:
        return None
    return ChunkGuidance(rtc, chunk, config.action_dim, every, delay)


def rtc_notes(rtc: RtcConfig | None, guide: ChunkGuidance | None) -> tuple[str, ...]:
    """Return a note if real-time chunking is enabled and has no effect."""
    if rtc is None or guide is not None:
        return ()
    return (
        "real-time chunking has no effect: chunks are executed to their end; lower "
        "--policy.n_action_steps, or set --eval.latency_steps",
    )


def prefix_weights(rtc: RtcConfig, delay: int, left: int, chunk: int) -> list[float]:
    """Return the weight of each of ``chunk`` steps; the old chunk has ``left`` steps."""
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
    """Return the guidance weight at ``time``: largest at pure noise and near the actions."""
    done = 1 - time
    if done <= 0 or time <= 0:
        return most
    return min(most, time / done * (time**2 + done**2) / time**2)
