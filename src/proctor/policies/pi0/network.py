"""pi0 (Black et al., 2024): flow matching with an action expert on a vision-language model.

    images, prompt ─▶ PaliGemma ─▶ KV cache of every layer                     once per chunk
                                       │
    state, noisy actions, time ─▶ expert (a small Gemma) ─▶ velocity           at every step

Prefix tokens never attend to action tokens. So the prefix KV cache does not depend on the expert,
and training and sampling compute it in the same way. Denoising steps are unrolled and have one
shape, so one CUDA graph holds them all. Values are normalised; B is the batch, T ``chunk_size``, A
``max_action_dim``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.rtc import GuidedNetwork
from proctor.policies.lerobot.config.mixins import read_rtc
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import FlowConfig
from proctor.policies.pi0.gemma import Gemma, KVCache, TokenPositions, token_positions
from proctor.policies.pi0.paligemma import (
    PaliGemma,
    PrefixEncoder,
    bidirectional_positions,
    pad_last_dim,
)
from proctor.policies.runtime.network import NoiseSpec

NOISE, TIME = "noise", "time"
_HEAD = "paligemma_with_expert.gemma_expert.lm_head.weight"


class PrefixCache(NamedTuple):
    """KV cache of an encoded prefix: images and prompt."""

    kv_cache: list[KVCache]
    valid: Tensor
    """Padding mask [B, P]: False at padding."""


class FlowMatchingNetwork(PrefixEncoder, GuidedNetwork):
    """Base network of pi0 and pi0.5; attribute names are those of LeRobot's checkpoints."""

    config: FlowConfig
    adapter_targets = (
        r"(.*\.gemma_expert\..*\.self_attn\.(q|v)_proj|model\.(state_proj|action_in_proj|"
        r"action_out_proj|action_time_mlp_in|action_time_mlp_out))"
    )
    adaptive: bool
    """Whether the time conditions the expert's norms (adaRMS) instead of its tokens."""
    n_before: int
    """Number of expert tokens before the action tokens."""

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
        noise = (NoiseSpec.NORMAL, (config.chunk_size, config.max_action_dim))
        self.use_guidance(read_rtc(config.rtc_config), config, config.chunk_size)
        self.draws = {NOISE: noise}
        self.loss_draws = {NOISE: noise, TIME: (NoiseSpec.UNIFORM, ())}
        for part in (model.language, gemma):
            part.saves_memory = config.gradient_checkpointing
        if config.freeze_vision_encoder:
            model.tower.requires_grad_(False)
        if config.train_expert_only:
            model.requires_grad_(False)

    @property
    def expert(self) -> Gemma:
        """The action expert."""
        gemma: Gemma = self.paligemma_with_expert["gemma_expert"]["model"]  # type: ignore[index]
        return gemma

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Accept openpi's parameter names too, and files without the unused heads."""
        named = {self.renamed(key): value for key, value in stored.items()}
        if _HEAD not in named:
            width, words = self.expert.size.width, sizes.VOCABULARY
            named[_HEAD] = torch.zeros(()).expand(words, width)
        return super().remap_state_dict(named)

    def cast(self, dtype: torch.dtype | None) -> None:
        """Also drop the unused language-model heads in evaluation: a sixth of all weights."""
        super().cast(dtype)
        if not self.training:
            for owner in (self.vlm, self.paligemma_with_expert["gemma_expert"]):
                owner.lm_head = None  # type: ignore[assignment]

    def encode_prefix(self, inputs: dict[str, Tensor]) -> PrefixCache:
        """Encode images and prompt with PaliGemma; return the KV cache."""
        prefix = self.encode_images(inputs)
        x, valid = self.vlm.embed(prefix, inputs[LANGUAGE_TOKENS], inputs[LANGUAGE_MASK])
        language = self.vlm.language
        return PrefixCache(
            language.prefill(x, bidirectional_positions(valid, language.size)), valid
        )

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, T, action] from the newest observation on."""
        sampled = self.sample(inputs, self.encode_prefix(inputs), draws[NOISE])
        return sampled[..., : self.config.action_dim]

    def sample(self, inputs: dict[str, Tensor], prefix: PrefixCache, noise: Tensor) -> Tensor:
        """Integrate from ``noise`` to actions [B, T, A] by Euler steps from time 1 to 0."""
        steps = self.config.num_inference_steps
        # Round each time once: at the minimum period, one bit of it changes its sine by 1e-4.
        exact = [
            noise.new_full((1,), 1 - step / steps, dtype=torch.float32) for step in range(steps)
        ]
        times = torch.cat(exact)
        conditioning = self.time_conditioning(self.embed_time(times))  # of all steps
        x, positions = noise.float(), self.attention_layout(prefix)
        for step in range(steps):
            now = [each[step : step + 1] for each in conditioning]
            velocity = self.velocity(inputs, x, now, prefix, positions)
            if self.guide is not None:
                velocity = self.guide.bend(velocity, x, 1 - step / steps, inputs)
            x = x - velocity / steps
        return x

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of the velocity at random times.

        Actions padded after an episode's end count, as in LeRobot.
        """
        config, noise = self.config, draws[NOISE]
        # Inverse CDF of a Beta distribution whose second parameter is 1.
        time = draws[TIME] ** (1 / config.time_sampling_beta_alpha)
        errors = self.errors(
            batch, noise, time * config.time_sampling_scale + config.time_sampling_offset
        )
        return errors.mean(), {}

    def errors(self, batch: dict[str, Tensor], noise: Tensor, time: Tensor) -> Tensor:
        """Return the squared errors [B, T, action] of the velocity at ``time`` [B]."""
        actions, prefix = (
            pad_last_dim(batch[ACTION], self.config.max_action_dim),
            self.encode_prefix(batch),
        )
        part = time[:, None, None]
        x = part * noise + (1 - part) * actions
        conditioning = self.time_conditioning(self.embed_time(time))
        found = self.velocity(batch, x, conditioning, prefix, self.attention_layout(prefix))
        wrong = F.mse_loss(found, noise - actions, reduction="none")
        return wrong[..., : self.config.action_dim]

    def velocity(
        self,
        inputs: dict[str, Tensor],
        x: Tensor,
        conditioning: list[Tensor],
        prefix: PrefixCache,
        positions: TokenPositions,
    ) -> Tensor:
        """Return the velocity [B, T, A] at noisy actions ``x``, for one time conditioning."""
        tokens = self.tokens(inputs, x, conditioning).to(prefix.kv_cache[0][0].dtype)
        out, _ = self.expert(
            tokens, positions, prefix.kv_cache, conditioning if self.adaptive else None
        )
        velocity: Tensor = self.action_out_proj(out[:, -x.shape[1] :].float())
        return velocity

    def embed_time(self, times: Tensor) -> Tensor:
        """Return the sinusoidal embedding [R, width] of times [R]."""
        config, half = self.config, self.expert.size.width // 2
        exact = torch.float32 if times.device.type == "mps" else torch.float64
        spread = torch.linspace(0, 1, half, device=times.device, dtype=exact)
        periods = config.min_period * (config.max_period / config.min_period) ** spread
        angles = times[:, None].to(exact) / periods * (2 * math.pi)
        return torch.cat([angles.sin(), angles.cos()], dim=-1).float()

    def attention_layout(self, prefix: PrefixCache) -> TokenPositions:
        """Return positions and mask of the expert's tokens, which attend to the whole prefix."""
        n = self.n_before + self.config.chunk_size
        own = prefix.valid.new_ones(n, n)
        own[: self.n_before, self.n_before :] = False  # the state does not attend to actions
        each = (len(prefix.valid), 1, n, -1)
        mask = torch.cat([prefix.valid[:, None, None].expand(each), own.expand(each)], dim=-1)
        positions = prefix.valid.sum(1, keepdim=True) + torch.arange(n, device=mask.device)
        return token_positions(positions, mask, self.expert.size)

    def compiled_modules(self) -> list[nn.Module]:
        """Return all layers, each compiled on its own."""
        return [*self.vlm.tower.layers, *self.vlm.language.layers, *self.expert.layers]

    @abstractmethod
    def renamed(self, key: str) -> str:
        """Return our name of a tensor that a file calls ``key``."""

    @abstractmethod
    def time_conditioning(self, time: Tensor) -> list[Tensor]:
        """Return the time conditioning for embedded times [R, width], each [R, 1, ...]."""

    @abstractmethod
    def tokens(self, inputs: dict[str, Tensor], x: Tensor, conditioning: list[Tensor]) -> Tensor:
        """Return the expert's tokens [B, n_before + T, width] for noisy actions [B, T, A]."""


class Pi0(FlowMatchingNetwork):
    """pi0: the expert has a state token, and an MLP mixes the time into the action tokens."""

    adaptive = False
    n_before = 1

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        width = self.expert.size.width
        self.state_proj = nn.Linear(config.max_state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def renamed(self, key: str) -> str:
        """Return LeRobot's name for an openpi parameter."""
        return f"action_{key}" if key.startswith("time_mlp_") else key

    def time_conditioning(self, time: Tensor) -> list[Tensor]:
        """Return the embedded time itself."""
        return [time[:, None]]

    def tokens(self, inputs: dict[str, Tensor], x: Tensor, conditioning: list[Tensor]) -> Tensor:
        """Return the state token, then action tokens mixed with the time."""
        state = self.state_proj(pad_last_dim(inputs[STATE].float(), self.config.max_state_dim))
        action = self.action_in_proj(x)
        both = torch.cat([action, conditioning[0].expand_as(action)], dim=-1)
        mixed = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        return torch.cat([state[:, None], mixed], dim=1)


class Pi05(FlowMatchingNetwork):
    """The network; attribute names are those of LeRobot's checkpoints."""

    adaptive = True
    n_before = 0

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        width = self.expert.size.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def renamed(self, key: str) -> str:
        """Return pi0.5's name for a pi0 parameter."""
        return key.removeprefix("action_") if key.startswith("action_time_mlp_") else key

    def condition(self, time: Tensor) -> Tensor:
        """Return the condition of the adaptive norms for embedded times [R, width]."""
        return F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(time))))

    def time_conditioning(self, time: Tensor) -> list[Tensor]:
        """Return scale, shift and gate of every adaptive norm."""
        return self.expert.modulations(self.condition(time))

    def tokens(self, inputs: dict[str, Tensor], x: Tensor, conditioning: list[Tensor]) -> Tensor:
        """Return the action tokens."""
        tokens: Tensor = self.action_in_proj(x)
        return tokens
