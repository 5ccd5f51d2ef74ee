"""GR00T N1.5 (NVIDIA, 2025): the Eagle backbone and a diffusion transformer.

    views, prompt ─▶ SigLIP, Qwen3's first layers ─▶ features ┐
    state, learned tokens, noisy actions, time ───────────────┴▶ action head ─▶ velocity ─▶ actions

The backbone runs once per chunk; every denoising step runs the diffusion transformer only.

A result here does not depend on the batch: nothing attends to padding. In LeRobot 0.5.1 the head
reads padding tokens, and all rows get the first row's instruction. With ``upstream_padding`` the
head reads padding here too.

B is the batch, T the action horizon, A the padded action size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.groot.backbone import BackboneTokens
from proctor.policies.groot.base_weights import load_base
from proctor.policies.groot.head import ActionHead, HeadContext
from proctor.policies.groot.images import resize_bicubic
from proctor.policies.groot.network import NOISE, TIME
from proctor.policies.groot.padded_prompts import only_step
from proctor.policies.groot.shared_parts import (
    bf16_autocast,
    check_padded_sizes,
    eval_frozen,
    projector_of,
)
from proctor.policies.groot.sizes import GrootSizes
from proctor.policies.groot.steps import ACTION_MASK, EMBODIMENT, VIEW
from proctor.policies.groot_n15.chat import MOST_VIEWS, EaglePrompt
from proctor.policies.groot_n15.config import GrootN15Config
from proctor.policies.groot_n15.eagle import EagleBackbone
from proctor.policies.groot_n15.sizes import BASE_MODEL, EagleSizes, read_sizes
from proctor.policies.groot_n15.steps import EagleEncode, PackInputsV3
from proctor.policies.lerobot.step import ProcessorStep
from proctor.policies.runtime.network import Network, NoiseSpec

_LANGUAGE = "backbone.eagle_model.language_model"


class GrootN15(Network):
    """The network; attribute names are those of NVIDIA's and LeRobot's checkpoints."""

    takes_history = False
    tied = MappingProxyType(
        {f"{_LANGUAGE}.model.embed_tokens.weight": f"{_LANGUAGE}.lm_head.weight"}
    )
    adapter_targets = (
        r"_groot_model\.action_head\.model\.transformer_blocks\..*\.(to_q|to_v|to_out\.0)"
    )

    def __init__(
        self, config: GrootN15Config, sizes: tuple[GrootSizes, EagleSizes] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        head, eagle = sizes or read_sizes(config.base_model_path)
        self.sizes = head
        self.backbone = EagleBackbone(eagle)
        self.action_head = ActionHead(head)
        self.prompt: EaglePrompt | None = None
        self.horizon = min(head.action_horizon, config.action_horizon)
        chunk = head.action_horizon, head.max_action_dim
        self.draws = {NOISE: (NoiseSpec.NORMAL, chunk)}
        self.loss_draws = {NOISE: (NoiseSpec.NORMAL, chunk), TIME: (NoiseSpec.UNIFORM, ())}
        self.skips_padding = self.supports_cuda_graph = not config.upstream_padding
        check_padded_sizes(config, head)
        self._freeze()

    def _freeze(self) -> None:
        """Freeze the parts that the config does not train, as LeRobot does."""
        config, head = self.config, self.action_head
        self.backbone.eagle_model.language_model.requires_grad_(config.tune_llm)
        self.backbone.visual.requires_grad_(config.tune_visual)
        self.backbone.eagle_model.mlp1.requires_grad_(config.tune_visual)
        for module in projector_of(head, self.sizes):
            module.requires_grad_(config.tune_projector)
        head.model.requires_grad_(config.tune_diffusion_model)

    def train(self, mode: bool = True) -> GrootN15:
        """Switch to training; frozen parts stay in evaluation mode, without dropout."""
        super().train(mode)
        config = self.config
        is_trained = {
            self.backbone.language: config.tune_llm,
            self.backbone.visual: config.tune_visual,
            self.action_head.model: config.tune_diffusion_model,
        }
        eval_frozen(is_trained)
        return self

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.backbone.language.embed_tokens.num_embeddings

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Take the prompt's layout from the steps, and check the embodiment and the cameras."""
        pack, encode = only_step(steps, PackInputsV3), only_step(steps, EagleEncode)
        pack.check_embodiment(self.sizes.max_num_embodiments)
        if len(self.config.cameras) > MOST_VIEWS:
            raise UsageError(
                f"GR00T N1.5 takes at most {MOST_VIEWS} cameras, got {len(self.config.cameras)}",
                code="policy.out-of-range",
            )
        chunk = pack.action_horizon, self.sizes.max_action_dim
        self.loss_draws = {**self.loss_draws, NOISE: (NoiseSpec.NORMAL, chunk)}
        self.prompt = encode.prompt

    def load_pretrained(self) -> None:
        """Load the weights of the base model, as LeRobot does for every new policy."""
        load_base(self, self.config.base_model_path or BASE_MODEL)

    def begin_training(self) -> None:
        """Train float32 weights; the loss runs in bfloat16 (autocast) with ``use_bf16``."""
        self.cast(torch.float32)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return one group of all trained parameters."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        return bf16_autocast(device, self.input_dtype, use_bf16=self.config.use_bf16)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, horizon, action]."""
        noise = draws[NOISE].to(self.input_dtype)
        with self._precision(noise.device):
            steps = self.sizes.num_inference_timesteps
            actions = self.action_head.sample(self.context(inputs), noise, steps)
        return actions[:, : self.horizon, : self.config.action_dim]

    def context(self, inputs: dict[str, Tensor]) -> HeadContext:
        """Return what all denoising steps share."""
        return self.action_head.context(
            self.encode_prompt(inputs),
            inputs[STATE],
            inputs[EMBODIMENT].long(),
            upstream=self.config.upstream_padding,
        )

    def encode_prompt(self, inputs: dict[str, Tensor]) -> BackboneTokens:
        """Return the backbone's features of views and prompt."""
        assert self.prompt is not None, "check_preprocessor is called before use"
        keys = sorted(key for key in inputs if key.startswith(VIEW))
        views = [self._scaled(inputs[key]) for key in keys]
        tokens, valid = inputs[LANGUAGE_TOKENS].long(), inputs[LANGUAGE_MASK].bool()
        if self.config.upstream_padding:  # LeRobot pads to the longest prompt of a batch
            longest = int(valid.sum(1).max())
            tokens, valid = tokens[:, :longest], valid[:, :longest]
        parts = self.prompt.parts(len(views), tokens.shape[1])
        found: BackboneTokens = self.backbone(
            views, tokens, valid, parts, upstream=self.config.upstream_padding
        )
        return found

    def _scaled(self, view: Tensor) -> Tensor:
        """Return a view [B, 3, H, W] of 0 to 255 as the vision encoder's square, -1 to 1."""
        side = self.backbone.sizes.vision_config.image_size
        resized = resize_bicubic(view.float(), (side, side))
        return ((resized - 127.5) / 127.5).to(self.input_dtype)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the velocity at random times, for real action dimensions."""
        actions, mask = batch[ACTION], batch[ACTION_MASK]
        # Inverse CDF of Beta(alpha, 1).
        beta = draws[TIME] ** (1 / self.sizes.noise_beta_alpha)
        time = (self.sizes.noise_s - beta) / self.sizes.noise_s
        with self._precision(actions.device):
            noise = draws[NOISE].to(actions.dtype)
            errors = self.action_head.errors(
                self.context(batch), actions, noise, time.to(actions.dtype)
            )
        return (errors * mask).sum() / mask.sum(), {}

    def compiled_modules(self) -> list[nn.Module]:
        """Return vision encoder, language model and the diffusion transformer."""
        return [self.backbone.visual, self.backbone.language, self.action_head.model]
