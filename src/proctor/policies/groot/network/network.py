"""GR00T (NVIDIA, 2025): a vision-language backbone and a diffusion transformer.

    views, prompt ─▶ backbone, first layers ─▶ features ┐
    state, noisy actions, time ─────────────────────────┴▶ action head ─▶ velocity ─▶ actions

N1.7's backbone is Qwen3-VL; N1.5's is Eagle (SigLIP, Qwen3), and its head has learned tokens too.
The backbone runs once per chunk; every denoising step runs the diffusion transformer only.

A result here does not depend on the batch: nothing attends to padding. In LeRobot the head reads
padding tokens, so a sample depends on the longest prompt of its batch; N1.5 in LeRobot 0.5.1 also
gives all rows the first row's instruction. With ``upstream_padding`` the head reads padding here
too.

N1.7 has its own form of real-time chunking: a new chunk starts from the rest of the old one. The
first actions start from the old chunk instead of noise. Those that are executed during the
inference are frozen; the velocity of the others grows exponentially to full strength.

B is the batch, T the action horizon, A the padded action size.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.rtc import HAS_LEFT, LEFT_OVER, ChunkGuidance, GuidedNetwork
from proctor.policies.groot.config import GrootConfig, GrootN15Config, GrootN17Config
from proctor.policies.groot.network.backbone import BackboneTokens, QwenBackbone
from proctor.policies.groot.network.eagle import EagleBackbone
from proctor.policies.groot.network.head import ActionHead, HeadContext, Prefix
from proctor.policies.groot.network.qwen_sizes import QwenSizes
from proctor.policies.groot.network.sizes import (
    BASE_MODEL,
    N15_BASE_MODEL,
    EagleSizes,
    GrootSizes,
    read_n15_sizes,
    read_sizes,
)
from proctor.policies.groot.steps.chat import MOST_VIEWS, EaglePrompt, only_step
from proctor.policies.groot.steps.encode_step import EagleEncode, VlmEncode
from proctor.policies.groot.steps.images import resize_bicubic
from proctor.policies.groot.steps.steps import (
    ACTION_MASK,
    EMBODIMENT,
    VIEW,
    PackInputs,
    PackInputsV3,
)
from proctor.policies.lerobot.checkpoint.location import locate
from proctor.policies.lerobot.checkpoint.weights import load_weights, read_weight_files
from proctor.policies.lerobot.config.mixins import read_rtc
from proctor.policies.lerobot.processors.step import ProcessorStep
from proctor.policies.runtime.network import NoiseSpec

NOISE, TIME, DROP = "noise", "time", "drop"
_N15_LANGUAGE = "backbone.eagle_model.language_model"
_EMBEDDINGS = "backbone.model.model.language_model.embed_tokens.weight"
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


class Groot(GuidedNetwork):
    """What the versions share; attribute names are those of NVIDIA's and LeRobot's checkpoints."""

    takes_history = False
    adapter_targets = (
        r"_groot_model\.action_head\.model\.transformer_blocks\..*\.(to_q|to_v|to_out\.0)"
    )
    base_model: ClassVar[str]
    """The published base model, from which training starts unless the config names another."""
    backbone: QwenBackbone | EagleBackbone

    def __init__(
        self, config: GrootConfig, head: GrootSizes, backbone: QwenBackbone | EagleBackbone
    ) -> None:
        super().__init__()
        self.config, self.sizes = config, head
        self.backbone, self.action_head = backbone, ActionHead(head)
        self.horizon = min(head.action_horizon, config.action_horizon)
        noise = NoiseSpec.NORMAL, (head.action_horizon, head.max_action_dim)
        self.draws = {NOISE: noise}
        self.loss_draws = {NOISE: noise, TIME: (NoiseSpec.UNIFORM, ())}
        self.skips_padding = self.supports_cuda_graph = not config.upstream_padding
        for name in ("max_state_dim", "max_action_dim"):
            ours, theirs = getattr(config, name), getattr(head, name)
            if ours != theirs:
                raise ValueError(f"{name} is {ours}, but the base model has {theirs}")

    @abstractmethod
    def trained_parts(self) -> dict[nn.Module, bool]:
        """Return whether the config trains each part, as in LeRobot."""

    def freeze(self) -> None:
        """Freeze the parts that the config does not train."""
        for module, trained in self.trained_parts().items():
            module.requires_grad_(trained)

    def train(self, mode: bool = True) -> Self:
        """Switch to training; frozen parts stay in evaluation mode, without dropout."""
        super().train(mode)
        for module, trained in self.trained_parts().items():
            if not trained:
                module.eval()
        return self

    def projector(self) -> list[nn.Module]:
        """Return the parts that ``tune_projector`` trains."""
        head = self.action_head
        positions = [head.position_embedding] if self.sizes.add_pos_embed else []
        return [head.state_encoder, head.action_encoder, head.action_decoder, *positions]

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.backbone.language.embed_tokens.num_embeddings

    def check_pack_step(self, pack: PackInputs) -> None:
        """Check the embodiment, and draw noise for as many actions as the step packs."""
        pack.check_embodiment(self.sizes.max_num_embodiments)
        chunk = pack.action_horizon, self.sizes.max_action_dim
        self.loss_draws = {**self.loss_draws, NOISE: (NoiseSpec.NORMAL, chunk)}

    def load_pretrained(self) -> None:
        """Load the weights of the base model, as LeRobot does for every new policy."""
        folder = locate(self.config.base_model_path or self.base_model).folder
        tensors, _ = read_weight_files(folder)
        load_weights(self, tensors, "_groot_model.", str(folder))

    def precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return bfloat16 autocast for float32 weights if ``use_bf16``, as LeRobot does."""
        wanted = self.config.use_bf16 and self.input_dtype == torch.float32
        return torch.autocast(device.type, torch.bfloat16, enabled=wanted)

    @property
    def denoising_steps(self) -> int:
        """Denoising steps per inference."""
        return self.sizes.num_inference_timesteps

    def prefix(self, inputs: dict[str, Tensor], noise: Tensor) -> Prefix | None:
        """Return the old chunk's actions for real-time chunking; None: it is off."""
        return None

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, horizon, action]."""
        noise = draws[NOISE].to(self.input_dtype)
        with self.precision(noise.device):
            context, prefix = self.context(inputs), self.prefix(inputs, noise)
            actions = self.action_head.sample(context, noise, self.denoising_steps, prefix)
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
        views = [inputs[key] for key in sorted(k for k in inputs if k.startswith(VIEW))]
        tokens, valid = inputs[LANGUAGE_TOKENS].long(), inputs[LANGUAGE_MASK].bool()
        if self.config.upstream_padding:  # LeRobot pads to the longest prompt of a batch
            longest = int(valid.sum(1).max())
            tokens, valid = tokens[:, :longest], valid[:, :longest]
        return self.encode_views(views, tokens, valid)

    @abstractmethod
    def encode_views(self, views: list[Tensor], tokens: Tensor, valid: Tensor) -> BackboneTokens:
        """Return the backbone's features of views [B, 3, H, W] and prompts [B, L]."""

    def compiled_modules(self) -> list[nn.Module]:
        """Return vision encoder, language model and the diffusion transformer."""
        return [self.backbone.visual, self.backbone.language, self.action_head.model]


class GrootN17(Groot):
    """GR00T N1.7."""

    tied = MappingProxyType({_EMBEDDINGS: "backbone.model.lm_head.weight"})
    base_model = BASE_MODEL
    config: GrootN17Config
    backbone: QwenBackbone

    def __init__(
        self, config: GrootN17Config, sizes: tuple[GrootSizes, QwenSizes] | None = None
    ) -> None:
        head, qwen = sizes or read_sizes(config.base_model_path)
        super().__init__(config, head, QwenBackbone(qwen, head.select_layer))
        self.prefix_length, self.state_dropout = 3, 0.0
        rtc = read_rtc(config.rtc_config)
        # The rest of a chunk of relative actions is relative to an earlier state.
        self.use_guidance(rtc, config, 0 if config.use_relative_actions else self.horizon)
        self.loss_draws = {**self.loss_draws, DROP: (NoiseSpec.UNIFORM, (2,))}
        self.freeze()

    def trained_parts(self) -> dict[nn.Module, bool]:
        """Return whether the config trains each part."""
        config, head = self.config, self.action_head
        return {
            self.backbone.language: config.tune_llm,
            self.backbone.visual: config.tune_visual,
            **dict.fromkeys(self.projector(), config.tune_projector),
            head.model: config.tune_diffusion_model,
            head.vlln: config.tune_vlln,
            head.vl_self_attention: config.tune_vlln,
        }

    def freeze(self) -> None:
        """Freeze the parts that the config does not train, but not the top layers."""
        super().freeze()
        top = self.config.tune_top_llm_layers
        for layer in self.backbone.language.layers[-top:] if top else ():
            layer.requires_grad_(requires_grad=True)

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Take the prompt's layout from the steps, and check the embodiment and the horizon."""
        pack, encode = only_step(steps, PackInputs), only_step(steps, VlmEncode)
        self.check_pack_step(pack)
        valid = min(pack.valid_action_horizon, pack.action_horizon)
        if self.config.replan_steps > valid:
            raise UsageError(
                f"n_action_steps is {self.config.replan_steps}, but the checkpoint's action "
                f"horizon is {valid}: set --policy.n_action_steps={valid}",
                code="policy.out-of-range",
            )
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

    @property
    def denoising_steps(self) -> int:
        """Denoising steps per inference."""
        return self.config.num_inference_timesteps or self.sizes.num_inference_timesteps

    def prefix(self, inputs: dict[str, Tensor], noise: Tensor) -> Prefix | None:
        """Return the old chunk's actions for real-time chunking; None: it is off."""
        rate = self.config.rtc_ramp_rate or self.sizes.rtc_ramp_rate
        return None if self.guide is None else prefix_of(self.guide, inputs, noise, rate)

    def encode_views(self, views: list[Tensor], tokens: Tensor, valid: Tensor) -> BackboneTokens:
        """Return the backbone's features of views and prompts."""
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
        with self.precision(actions.device):
            context = self.context({**batch, STATE: batch[STATE] * state_kept[:, None]})
            token = context.state * token_kept[:, None, None]
            noise = draws[NOISE].to(actions.dtype)
            errors = self.action_head.errors(
                context._replace(state=token), actions, noise, time.to(actions.dtype)
            )
        return (errors * mask).sum() / (mask.sum() + 1e-6), {}


class GrootN15(Groot):
    """GR00T N1.5."""

    tied = MappingProxyType(
        {f"{_N15_LANGUAGE}.model.embed_tokens.weight": f"{_N15_LANGUAGE}.lm_head.weight"}
    )
    base_model = N15_BASE_MODEL
    config: GrootN15Config
    backbone: EagleBackbone

    def __init__(
        self, config: GrootN15Config, sizes: tuple[GrootSizes, EagleSizes] | None = None
    ) -> None:
        head, eagle = sizes or read_n15_sizes(config.base_model_path)
        super().__init__(config, head, EagleBackbone(eagle))
        self.prompt: EaglePrompt | None = None
        self.freeze()

    def trained_parts(self) -> dict[nn.Module, bool]:
        """Return whether the config trains each part."""
        config, eagle = self.config, self.backbone.eagle_model
        return {
            eagle.language_model: config.tune_llm,
            eagle.vision_model: config.tune_visual,
            eagle.mlp1: config.tune_visual,
            **dict.fromkeys(self.projector(), config.tune_projector),
            self.action_head.model: config.tune_diffusion_model,
        }

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Take the prompt's layout from the steps, and check the embodiment and the cameras."""
        pack, encode = only_step(steps, PackInputsV3), only_step(steps, EagleEncode)
        self.check_pack_step(pack)
        if len(self.config.cameras) > MOST_VIEWS:
            raise UsageError(
                f"GR00T N1.5 takes at most {MOST_VIEWS} cameras, got {len(self.config.cameras)}",
                code="policy.out-of-range",
            )
        self.prompt = encode.prompt

    def begin_training(self) -> None:
        """Train float32 weights; the loss runs in bfloat16 (autocast) with ``use_bf16``."""
        self.cast(torch.float32)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return one group of all trained parameters."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def encode_views(self, views: list[Tensor], tokens: Tensor, valid: Tensor) -> BackboneTokens:
        """Return the backbone's features of views and prompts."""
        assert self.prompt is not None, "check_preprocessor is called before use"
        parts = self.prompt.parts(len(views), tokens.shape[1])
        found: BackboneTokens = self.backbone(
            [self._scaled(view) for view in views],
            tokens,
            valid,
            parts,
            upstream=self.config.upstream_padding,
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
        with self.precision(actions.device):
            noise = draws[NOISE].to(actions.dtype)
            errors = self.action_head.errors(
                self.context(batch), actions, noise, time.to(actions.dtype)
            )
        return (errors * mask).sum() / mask.sum(), {}


def prefix_of(
    guide: ChunkGuidance, inputs: Mapping[str, Tensor], noise: Tensor, rate: float
) -> Prefix:
    """Return the prefix of new chunks like ``noise`` [B, T, A] for the states in ``inputs``."""
    left = guide.chunk - guide.every
    overlap = min(left, guide.rtc.execution_horizon)
    old = inputs[LEFT_OVER][:, left - overlap : left].to(noise.dtype)
    room, size = noise.shape[1:]
    actions = F.pad(old, (0, size - old.shape[-1], 0, room - overlap))
    steps = [1.0] * overlap + [0.0] * (room - overlap)
    counts = _column(steps, noise) * inputs[HAS_LEFT].to(noise.dtype)[:, None, None]
    factors = strengths(overlap, min(guide.delay, overlap), rate) + [1.0] * (room - overlap)
    strength = 1 + counts * (_column(factors, noise) - 1)
    return Prefix(actions, counts, strength)


def strengths(overlap: int, frozen: int, rate: float) -> list[float]:
    """Return the velocity's factor at each of ``overlap`` actions, the first ones frozen."""
    inner = overlap - frozen
    ramp = [1 - math.exp(-rate * n / (inner + 1)) for n in range(inner + 2)]
    whole = max(ramp[-1], 1e-8)
    return [0.0] * frozen + [value / whole for value in ramp[1:-1]]


def _column(values: list[float], like: Tensor) -> Tensor:
    """Return [T, 1], made on the device, as CUDA graphs need."""
    made = [torch.full((1, 1), v, dtype=like.dtype, device=like.device) for v in values]
    return torch.cat(made)
