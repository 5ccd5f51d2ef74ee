"""pi0 (Black et al., 2024): actions flow from noise under what a vision-language model remembers.

    pictures, words ─▶ PaliGemma ─▶ memory: keys and values of every layer     once for a chunk
                                       │
    state, noisy actions, time ─▶ expert (a small Gemma) ─▶ velocity           at every step

The memory does not depend on the expert, so training and sampling compute it the same way: a joint
pass through both gives the same numbers. Steps are unrolled and of one shape, so a CUDA graph holds
them all. Values are normalised; B is the batch, T ``chunk_size``, A ``max_action_dim``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.rtc import guide_of, remarks_on
from proctor.policies.lerobot.rtc_config import read_rtc
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import FlowConfig
from proctor.policies.pi0.gemma import Gemma, Memory, Place, place
from proctor.policies.pi0.paligemma import PaliGemma, among_all, padded
from proctor.policies.pi0.seeing import Seeing
from proctor.policies.runtime.network import Drawn

NOISE, TIME = "noise", "time"
_HEAD = "paligemma_with_expert.gemma_expert.lm_head.weight"


class Seen(NamedTuple):
    """What is remembered of an observation."""

    memory: list[Memory]
    there: Tensor
    """Which of its tokens are there, [B, P]."""


class Flow(Seeing):
    """What pi0 and pi0.5 share; attribute names are those of LeRobot's checkpoints."""

    config: FlowConfig
    adapted = (
        r"(.*\.gemma_expert\..*\.self_attn\.(q|v)_proj|model\.(state_proj|action_in_proj|"
        r"action_out_proj|action_time_mlp_in|action_time_mlp_out))"
    )
    adaptive: bool
    """Whether the time speaks to the expert's norms, instead of to its tokens."""
    n_before: int
    """Tokens of the expert that stand before those of actions."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        expert = sizes.GEMMAS[config.action_expert_variant]
        model = PaliGemma(config.paligemma_variant, config.image_resolution[0])
        head = nn.Linear(expert.width, sizes.VOCABULARY, bias=False)  # never used, always stored
        gemma = Gemma(expert, None, adaptive=self.adaptive)
        actor = nn.ModuleDict({"lm_head": head, "model": gemma})
        self.paligemma_with_expert = nn.ModuleDict({"paligemma": model, "gemma_expert": actor})
        self.action_in_proj = nn.Linear(config.max_action_dim, expert.width)
        self.action_out_proj = nn.Linear(expert.width, config.max_action_dim)
        noise = (Drawn.NORMAL, (config.chunk_size, config.max_action_dim))
        rtc = read_rtc(config.rtc_config)
        self.guide = guide_of(rtc, config, config.chunk_size)
        self.remarks = remarks_on(rtc, self.guide)
        if self.guide is not None:
            self.recalled, self.asked_every = self.guide.recalled, self.guide.every
        self.draws = {NOISE: noise}
        self.loss_draws = {NOISE: noise, TIME: (Drawn.UNIFORM, ())}
        for part in (model.language, gemma):
            part.saves_memory = config.gradient_checkpointing
        if config.freeze_vision_encoder:
            model.tower.requires_grad_(False)
        if config.train_expert_only:
            model.requires_grad_(False)

    @property
    def expert(self) -> Gemma:
        """What acts."""
        gemma: Gemma = self.paligemma_with_expert["gemma_expert"]["model"]  # type: ignore[index]
        return gemma

    def adopt(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take names of openpi's, too; the heads, which nothing uses, need not be there."""
        named = {self.renamed(key): value for key, value in stored.items()}
        if _HEAD not in named:
            width, words = self.expert.size.width, sizes.VOCABULARY
            named[_HEAD] = torch.zeros(()).expand(words, width)
        return super().adopt(named)

    def cast(self, dtype: torch.dtype | None) -> None:
        """Act without the heads: a sixth of all weights, and never used."""
        super().cast(dtype)
        if not self.training:
            for owner in (self.vlm, self.paligemma_with_expert["gemma_expert"]):
                owner.lm_head = None  # type: ignore[assignment]

    def see(self, inputs: dict[str, Tensor]) -> Seen:
        """Return what is remembered of an observation."""
        seen = self.look(inputs)
        x, there = self.vlm.embed(seen, inputs[LANGUAGE_TOKENS], inputs[LANGUAGE_MASK])
        language = self.vlm.language
        return Seen(language.remember(x, among_all(there, language.size)), there)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, T, action] from the newest observation on."""
        sampled = self.sample(inputs, self.see(inputs), draws[NOISE])
        return sampled[..., : self.config.action_dim]

    def sample(self, inputs: dict[str, Tensor], seen: Seen, noise: Tensor) -> Tensor:
        """Let ``noise`` flow into actions [B, T, A], by Euler's steps from time 1 to 0."""
        steps = self.config.num_inference_steps
        # Rounded once: the shortest period makes of a last bit of the time 1e-4 of its sine.
        exact = [
            noise.new_full((1,), 1 - step / steps, dtype=torch.float32) for step in range(steps)
        ]
        times = torch.cat(exact)
        told = self.told(self.embed_time(times))  # of all steps at once: they are the same for all
        x, where = noise.float(), self.where(seen)
        for step in range(steps):
            now = [each[step : step + 1] for each in told]
            velocity = self.velocity(inputs, x, now, seen, where)
            if self.guide is not None:
                velocity = self.guide.bend(velocity, x, 1 - step / steps, inputs)
            x = x - velocity / steps
        return x

    def settle(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Keep what is left of chunks at the next query, where it leads that."""
        if self.guide is not None:
            self.guide.keep(chunks, states)
        return chunks

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the velocity at random times; padded actions count."""
        config, noise = self.config, draws[NOISE]
        # Of a Beta distribution whose second parameter is 1, this is the inverse.
        time = draws[TIME] ** (1 / config.time_sampling_beta_alpha)
        errors = self.errors(
            batch, noise, time * config.time_sampling_scale + config.time_sampling_offset
        )
        return errors.mean(), {}

    def errors(self, batch: dict[str, Tensor], noise: Tensor, time: Tensor) -> Tensor:
        """Return squared errors [B, T, action] at ``time`` [B] between ``noise`` and actions."""
        actions, seen = padded(batch[ACTION], self.config.max_action_dim), self.see(batch)
        part = time[:, None, None]
        x = part * noise + (1 - part) * actions
        told = self.told(self.embed_time(time))
        found = self.velocity(batch, x, told, seen, self.where(seen))
        wrong = F.mse_loss(found, noise - actions, reduction="none")
        return wrong[..., : self.config.action_dim]

    def velocity(
        self, inputs: dict[str, Tensor], x: Tensor, told: list[Tensor], seen: Seen, where: Place
    ) -> Tensor:
        """Return where noisy actions [B, T, A] flow, at the time that is ``told``."""
        tokens = self.tokens(inputs, x, told).to(seen.memory[0][0].dtype)
        out, _ = self.expert(tokens, where, seen.memory, told if self.adaptive else None)
        velocity: Tensor = self.action_out_proj(out[:, -x.shape[1] :].float())
        return velocity

    def embed_time(self, times: Tensor) -> Tensor:
        """Return times [R] as sines and cosines [R, width] of many periods."""
        config, half = self.config, self.expert.size.width // 2
        exact = torch.float32 if times.device.type == "mps" else torch.float64
        spread = torch.linspace(0, 1, half, device=times.device, dtype=exact)
        periods = config.min_period * (config.max_period / config.min_period) ** spread
        angles = times[:, None].to(exact) / periods * (2 * math.pi)
        return torch.cat([angles.sin(), angles.cos()], dim=-1).float()

    def where(self, seen: Seen) -> Place:
        """Return the place of the expert's tokens: after the words, seeing all that is there."""
        n = self.n_before + self.config.chunk_size
        own = seen.there.new_ones(n, n)
        own[: self.n_before, self.n_before :] = False  # a state does not look at actions
        each = (len(seen.there), 1, n, -1)
        mask = torch.cat([seen.there[:, None, None].expand(each), own.expand(each)], dim=-1)
        positions = seen.there.sum(1, keepdim=True) + torch.arange(n, device=mask.device)
        return place(positions, mask, self.expert.size)

    def hot_parts(self) -> list[nn.Module]:
        """Compile the layers, each as one."""
        return [*self.vlm.tower.layers, *self.vlm.language.layers, *self.expert.layers]

    @abstractmethod
    def renamed(self, key: str) -> str:
        """Return the name here of a tensor that has ``key`` for one in some file."""

    @abstractmethod
    def told(self, time: Tensor) -> list[Tensor]:
        """Return what is told of embedded times [R, width], each [R, 1, ...]."""

    @abstractmethod
    def tokens(self, inputs: dict[str, Tensor], x: Tensor, told: list[Tensor]) -> Tensor:
        """Return the expert's tokens [B, n_before + T, width] for noisy actions [B, T, A]."""


class Pi0(Flow):
    """The expert has a token of the state, and hears of the time in the tokens of actions."""

    adaptive = False
    n_before = 1

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        width = self.expert.size.width
        self.state_proj = nn.Linear(config.max_state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def renamed(self, key: str) -> str:
        """Return a name of openpi's as LeRobot has it."""
        return f"action_{key}" if key.startswith("time_mlp_") else key

    def told(self, time: Tensor) -> list[Tensor]:
        """Return the time itself."""
        return [time[:, None]]

    def tokens(self, inputs: dict[str, Tensor], x: Tensor, told: list[Tensor]) -> Tensor:
        """Return the state's token, then those of actions and time."""
        state = self.state_proj(padded(inputs[STATE].float(), self.config.max_state_dim))
        action = self.action_in_proj(x)
        both = torch.cat([action, told[0].expand_as(action)], dim=-1)
        mixed = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        return torch.cat([state[:, None], mixed], dim=1)
