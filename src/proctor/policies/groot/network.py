"""GR00T N1.7 (NVIDIA, 2025): a vision-language backbone and a diffusion transformer.

    views, prompt ─▶ Qwen3-VL, first layers ─▶ features ┐
    state, noisy actions, time ─────────────────────────┴▶ action head ─▶ velocity ─▶ actions

The backbone runs once per chunk; every denoising step runs the diffusion transformer only.

A result here does not depend on the batch: nothing attends to padding. In LeRobot the head's
self-attention reads padding tokens, so a sample depends on the longest prompt of its batch. With
``upstream_padding`` it does so here too.

B is the batch, T the action horizon, A the padded action size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.rtc import make_guidance, rtc_notes
from proctor.policies.groot.backbone import BackboneTokens, QwenBackbone
from proctor.policies.groot.base_weights import load_base
from proctor.policies.groot.config import GrootConfig
from proctor.policies.groot.encode_step import VlmEncode
from proctor.policies.groot.head import ActionHead, HeadContext
from proctor.policies.groot.padded_prompts import only_step
from proctor.policies.groot.qwen_sizes import QwenSizes
from proctor.policies.groot.real_time import prefix_of
from proctor.policies.groot.shared_parts import (
    bf16_autocast,
    check_padded_sizes,
    eval_frozen,
    projector_of,
)
from proctor.policies.groot.sizes import GrootSizes, read_sizes
from proctor.policies.groot.steps import (
    ACTION_MASK,
    EMBODIMENT,
    VIEW,
    PackInputs,
)
from proctor.policies.lerobot.rtc_config import read_rtc
from proctor.policies.lerobot.step import ProcessorStep
from proctor.policies.runtime.network import Network, NoiseSpec

NOISE, TIME, DROP = "noise", "time", "drop"
_EMBEDDINGS = "backbone.model.model.language_model.embed_tokens.weight"
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


class Groot(Network):
    """The network; attribute names are those of NVIDIA's and LeRobot's checkpoints."""

    takes_history = False
    tied = MappingProxyType({_EMBEDDINGS: "backbone.model.lm_head.weight"})
    adapter_targets = (
        r"_groot_model\.action_head\.model\.transformer_blocks\..*\.(to_q|to_v|to_out\.0)"
    )

    def __init__(
        self, config: GrootConfig, sizes: tuple[GrootSizes, QwenSizes] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        head, qwen = sizes or read_sizes(config.base_model_path)
        self.sizes = head
        self.backbone = QwenBackbone(qwen, head.select_layer)
        self.action_head = ActionHead(head)
        self.prefix_length, self.state_dropout = 3, 0.0
        self.horizon = min(head.action_horizon, config.action_horizon)
        chunk = head.action_horizon, head.max_action_dim
        rtc = read_rtc(config.rtc_config)
        self.guide = (
            None if config.use_relative_actions else make_guidance(rtc, config, self.horizon)
        )
        self.notes = rtc_notes(rtc, self.guide)
        if self.guide is not None:
            self.episode_inputs, self.asked_every = self.guide.episode_inputs, self.guide.every
        self.draws = {NOISE: (NoiseSpec.NORMAL, chunk)}
        uniform = NoiseSpec.UNIFORM
        self.loss_draws = {
            NOISE: (NoiseSpec.NORMAL, chunk),
            TIME: (uniform, ()),
            DROP: (uniform, (2,)),
        }
        self.skips_padding = self.supports_cuda_graph = not config.upstream_padding
        check_padded_sizes(config, head)
        self._freeze()

    def _freeze(self) -> None:
        """Freeze the parts that the config does not train, as LeRobot does."""
        config, head = self.config, self.action_head
        self.backbone.language.requires_grad_(config.tune_llm)
        self.backbone.visual.requires_grad_(config.tune_visual)
        top = config.tune_top_llm_layers
        for layer in self.backbone.language.layers[-top:] if top else ():
            layer.requires_grad_(requires_grad=True)
        for module in projector_of(head, self.sizes):
            module.requires_grad_(config.tune_projector)
        head.model.requires_grad_(config.tune_diffusion_model)
        for module in (head.vlln, head.vl_self_attention):
            module.requires_grad_(config.tune_vlln)

    def train(self, mode: bool = True) -> Groot:
        """Switch to training; frozen parts stay in evaluation mode, without dropout."""
        super().train(mode)
        config, head = self.config, self.action_head
        is_trained = {
            self.backbone.language: config.tune_llm,
            self.backbone.visual: config.tune_visual,
            head.model: config.tune_diffusion_model,
            head.vlln: config.tune_vlln,
            head.vl_self_attention: config.tune_vlln,
        }
        eval_frozen(is_trained)
        return self

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.backbone.language.embed_tokens.num_embeddings

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Take the prompt's layout from the steps, and check the embodiment and the horizon."""
        pack, encode = only_step(steps, PackInputs), only_step(steps, VlmEncode)
        pack.check_embodiment(self.sizes.max_num_embodiments)
        valid = min(pack.valid_action_horizon, pack.action_horizon)
        if self.config.replan_steps > valid:
            raise UsageError(
                f"n_action_steps is {self.config.replan_steps}, but the checkpoint's action "
                f"horizon is {valid}: set --policy.n_action_steps={valid}",
                code="policy.out-of-range",
            )
        chunk = pack.action_horizon, self.sizes.max_action_dim
        self.loss_draws = {**self.loss_draws, NOISE: (NoiseSpec.NORMAL, chunk)}
        side = self.backbone.visual.sizes.token_pixels
        if encode.patches.side % side:
            raise UsageError(
                f"the tokenizer's preprocessor_config.json makes images of multiples of "
                f"{encode.patches.side} pixels, the backbone needs {side}: the tokenizer is "
                "another model's",
                code="policy.wrong-backbone",
            )
        self.prefix_length = encode.prefix_length
        self.state_dropout = pack.state_dropout_prob

    def load_pretrained(self) -> None:
        """Load the weights of the base model, as LeRobot does for every new policy."""
        load_base(self, self.config.base_model_path)

    def begin_training(self) -> None:
        """Cast to float32 if ``model_params_fp32``; the loss then runs in bfloat16 (autocast)."""
        if self.config.model_params_fp32:
            self.cast(torch.float32)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return two groups: biases and norms have no weight decay."""
        exempt = {
            f"{owner}.{name}"
            for owner, module in self.named_modules()
            if isinstance(module, nn.LayerNorm)
            for name, _ in module.named_parameters()
        }
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                spared = name in exempt or _NO_DECAY.search(name.lower())
                (others if spared else decayed).append(parameter)
        return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        return bf16_autocast(device, self.input_dtype, use_bf16=self.config.use_bf16)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, horizon, action]."""
        noise = draws[NOISE].to(self.input_dtype)
        with self._precision(noise.device):
            context = self.context(inputs)
            steps = self.config.num_inference_timesteps or self.sizes.num_inference_timesteps
            rate = self.config.rtc_ramp_rate or self.sizes.rtc_ramp_rate
            prefix = None if self.guide is None else prefix_of(self.guide, inputs, noise, rate)
            actions = self.action_head.sample(context, noise, steps, prefix)
        return actions[:, : self.horizon, : self.config.action_dim]

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """With real-time chunking, store the rest of each chunk for the episode's next query."""
        if self.guide is not None:
            self.guide.keep(chunks, states)
        return chunks

    def context(self, inputs: dict[str, Tensor]) -> HeadContext:
        """Return what all denoising steps share."""
        upstream = self.config.upstream_padding
        return self.action_head.context(
            self.encode_prompt(inputs),
            inputs[STATE],
            inputs[EMBODIMENT].long(),
            upstream=upstream,
        )

    def encode_prompt(self, inputs: dict[str, Tensor]) -> BackboneTokens:
        """Return the backbone's features of views and prompt."""
        views = [inputs[key] for key in sorted(k for k in inputs if k.startswith(VIEW))]
        tokens, valid = inputs[LANGUAGE_TOKENS].long(), inputs[LANGUAGE_MASK].bool()
        if self.config.upstream_padding:  # LeRobot pads to the longest prompt of a batch
            longest = int(valid.sum(1).max())
            tokens, valid = tokens[:, :longest], valid[:, :longest]
        found: BackboneTokens = self.backbone(
            views, tokens, valid, self.prefix_length, upstream=self.config.upstream_padding
        )
        return found

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the velocity at random times; padding does not count."""
        actions, mask = batch[ACTION], batch[ACTION_MASK]
        # Inverse CDF of Beta(alpha, 1).
        beta = draws[TIME] ** (1 / self.sizes.noise_beta_alpha)
        time = (1 - beta) * self.sizes.noise_s
        shares = (
            (self.state_dropout, self.sizes.state_dropout_prob) if self.training else (0.0, 0.0)
        )
        state_kept, token_kept = (draws[DROP][:, n] >= share for n, share in enumerate(shares))
        with self._precision(actions.device):
            context = self.context({**batch, STATE: batch[STATE] * state_kept[:, None]})
            token = context.state * token_kept[:, None, None]
            noise = draws[NOISE].to(actions.dtype)
            errors = self.action_head.errors(
                context._replace(state=token), actions, noise, time.to(actions.dtype)
            )
        return (errors * mask).sum() / (mask.sum() + 1e-6), {}

    def compiled_modules(self) -> list[nn.Module]:
        """Return vision encoder, language model and the diffusion transformer."""
        return [self.backbone.visual, self.backbone.language, self.action_head.model]
