"""X-VLA (Zheng et al., 2025): a transformer denoises actions, conditioned on Florence-2 features.

    first camera ─▶ DaViT ─▶ tokens ┐
    prompt ─────────────────────────┴▶ BART's encoder ─▶ tokens ┐
    other cameras ─▶ DaViT ─▶ tokens ───────────────────────────┴▶ transformer ─▶ clean actions
                                            noisy actions, state, time ─┘

Florence-2 runs once per query; every denoising step runs the transformer only. The transformer
predicts clean actions, not a velocity: x_t = t noise + (1 - t) clean. B is the batch, T the chunk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.layers import resize_with_padding
from proctor.policies.lerobot.processors.step import ProcessorStep
from proctor.policies.lerobot.tokenizer.language import Tokenize, check_prompt_length
from proctor.policies.runtime.network import Network, NoiseSpec
from proctor.policies.xvla.actions import make_action_space
from proctor.policies.xvla.bart import BartModel
from proctor.policies.xvla.config import XVlaConfig
from proctor.policies.xvla.davit import DavitEncoder, FlorenceProjector
from proctor.policies.xvla.florence_config import FlorenceSizes
from proctor.policies.xvla.steps import DOMAIN, AddDomain, ImageScale, ImageToFloat
from proctor.policies.xvla.transformer import (
    DenoisingContext,
    SoftPromptedTransformer,
    TransformerSizes,
)

NOISE, TIME = "noise", "time"
_ALMOST_ONE = 1 - 1e-5
_EMBEDDINGS = "vlm.language_model.shared.weight"
_TIED = "vlm.language_model.encoder.embed_tokens.weight"
_RENAMED = [
    (re.compile(old), new)
    for old, new in (
        (r"^(vlm\.vision_tower\.convs\.\d+)\.proj\.", r"\1.conv."),
        (r"\.(conv[12])\.fn\.dw\.", r".\1."),
        (r"\.(?:window|channel)_attn\.norm\.", ".norm1."),
        (r"\.(window_attn|channel_attn)\.fn\.", r".\1."),
        (r"\.ffn\.norm\.", ".norm2."),
        (r"\.ffn\.fn\.net\.", ".ffn."),
        (r"^vlm\.image_pos_embed\.", "vlm.image_position_embed."),
        (
            r"^vlm\.(image_proj_norm|image_position_embed|visual_temporal_embed)\.",
            r"vlm.multi_modal_projector.\1.",
        ),
        (r"^vlm\.language_model\.model\.", "vlm.language_model."),
    )
]
"""From the names of Florence-2's original code, in published X-VLAs, to those of transformers."""


class FlorenceEncoder(nn.Module):
    """The parts of Florence-2 that X-VLA uses; attribute names are those of transformers."""

    def __init__(self, config: FlorenceSizes) -> None:
        super().__init__()
        self.vision_tower = DavitEncoder(config.vision)
        self.multi_modal_projector = FlorenceProjector(config.vision)
        self.language_model = BartModel(config.text)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def encode_images(self, images: Tensor) -> Tensor:
        """Return tokens [N, 1 + h x w, D] of images [N, 3, H, W]."""
        out: Tensor = self.multi_modal_projector(self.vision_tower(images))
        return out

    def encode_text(self, view: Tensor, tokens: Tensor) -> Tensor:
        """Encode the tokens of a view [B, n, D] and a prompt, int64 [B, L], to [B, n + L, D]."""
        text = self.language_model.embed(tokens)
        out: Tensor = self.language_model.encoder(torch.cat([view, text], dim=1))
        return out


class XVla(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = False

    def __init__(self, config: XVlaConfig) -> None:
        super().__init__()
        self.config = config
        florence = config.florence
        self.space = make_action_space(config)
        self.vlm = FlorenceEncoder(florence)
        self.transformer = SoftPromptedTransformer(_shape(config, florence))
        chunk = config.chunk_size, self.space.size
        self.draws = {NOISE: (NoiseSpec.NORMAL, chunk)}
        self.loss_draws = {NOISE: (NoiseSpec.NORMAL, chunk), TIME: (NoiseSpec.UNIFORM, ())}
        self.notes = _state_notes(config)
        self._freeze()

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return actions [B, T, A]: each step predicts clean actions from a mix with the noise."""
        context, state = self.context(inputs)
        noise = draws[NOISE].to(state.dtype)
        clean = torch.zeros_like(noise)
        steps = self.config.num_denoising_steps
        for left in range(steps, 0, -1):
            share = left / steps
            time = torch.full((len(noise),), share, dtype=noise.dtype, device=noise.device)
            noisy = noise * share + clean * (1 - share)
            clean = self.transformer(context, self.space.mask_grippers(noisy), state, time)
        return self.space.to_robot_actions(clean)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the action space's losses: positions, rotations, grippers, joints.

        Times are spread evenly over the batch, starting from one random number. Actions padded
        after an episode's end count, as in LeRobot.
        """
        context, state = self.context(batch)
        wanted = batch[ACTION].to(state.dtype)
        wanted = F.pad(wanted, (0, self.space.size - wanted.shape[-1]))
        rows = len(wanted)
        places = torch.arange(rows, dtype=wanted.dtype, device=wanted.device) / rows
        time = (draws[TIME][:1].to(wanted.dtype) + places) % _ALMOST_ONE
        share = time[:, None, None]
        noisy = draws[NOISE].to(wanted.dtype) * share + wanted * (1 - share)
        given = self.transformer(context, self.space.mask_grippers(noisy), state, time)
        parts = self.space.losses(given, wanted)
        return torch.stack(list(parts.values())).sum(), parts

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.vlm.language_model.shared.num_embeddings

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Check the preprocessor steps: domain id, padding of prompts, scaling of images.

        Prompts must be padded to a fixed length: X-VLA attends to padding, so padding to the
        longest prompt would make actions depend on the rest of the batch.
        """
        most = self.config.num_domains
        check_prompt_length(steps, self.config.tokenizer_max_length)
        kinds = [type(step) for step in steps]
        if ImageScale in kinds and ImageToFloat in kinds[kinds.index(ImageScale) :]:
            raise UsageError(
                f"{ImageScale.registry_name} is before {ImageToFloat.registry_name}, so each image "
                "would be scaled by its own content",
                code="checkpoint.invalid-pipeline",
            )
        for step in steps:
            if isinstance(step, Tokenize) and step.padding != "max_length":
                raise UsageError(
                    f"{step.registry_name}: padding is {step.padding!r}; X-VLA attends to padding, "
                    "so actions would depend on the batch: set it to max_length",
                    code="checkpoint.invalid-pipeline",
                )
            if isinstance(step, AddDomain) and step.domain_id >= most:
                raise UsageError(
                    f"{step.registry_name}: domain_id is {step.domain_id} (choose 0-{most - 1})",
                    code="policy.unknown-domain",
                )

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Accept the parameter names of Florence-2's original code too.

        The token embeddings have two names in Florence-2; a file may have either.
        """
        named = dict(self._remapped(name, value) for name, value in stored.items())
        embeddings = named.pop(_TIED, None)
        if embeddings is not None:
            named.setdefault(_EMBEDDINGS, embeddings)
        named.pop("vlm.language_model.final_logits_bias", None)
        return named

    def _remapped(self, name: str, value: Tensor) -> tuple[str, Tensor]:
        if name == "vlm.image_projection":
            return "vlm.multi_modal_projector.image_projection.weight", value.t().contiguous()
        for old, new in _RENAMED:
            name = old.sub(new, name)
        return name, value

    def context(self, inputs: dict[str, Tensor]) -> tuple[DenoisingContext, Tensor]:
        """Return the context that all denoising steps share, and the state input [B, S]."""
        tokens = inputs[LANGUAGE_TOKENS].long()
        encoded, others = self.encode_observation(self.views(inputs), tokens)
        domain = self._domain(inputs, tokens)
        context = self.transformer.context(domain, encoded, others, self.config.chunk_size)
        return context, self.space.mask_grippers(self._state(inputs, encoded))

    def views(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the resized images of all cameras, [B, cameras, 3, H, W]."""
        size = self.config.resize_imgs_with_padding
        images = [inputs[key].to(self.input_dtype) for key in self.config.cameras]
        return torch.stack(
            [i if size is None else resize_with_padding(i, *size) for i in images], dim=1
        )

    def encode_observation(self, views: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Encode the first view with the prompt, and the other views alone, to [B, n, D] each.

        The tokens of empty views are zeros.
        """
        batch, cameras = views.shape[:2]
        image_tokens = self.vlm.encode_images(views.flatten(0, 1))
        image_tokens = image_tokens.reshape(batch, cameras, *image_tokens.shape[1:])
        others = image_tokens[:, 1:].flatten(1, 2)
        empty = (self.config.n_views - cameras) * image_tokens.shape[2]
        return self.vlm.encode_text(image_tokens[:, 0], tokens), F.pad(others, (0, 0, 0, empty))

    def _domain(self, inputs: dict[str, Tensor], like: Tensor) -> Tensor:
        if DOMAIN in inputs:
            return inputs[DOMAIN].long()
        return torch.zeros(len(like), dtype=torch.long, device=like.device)

    def _state(self, inputs: dict[str, Tensor], like: Tensor) -> Tensor:
        size = self.config.state_size
        if not size:
            return like.new_zeros(len(like), 0)
        state = inputs[STATE][..., :size].to(like.dtype)
        return F.pad(state, (0, size - state.shape[-1]))

    def training_notes(self, steps: int) -> tuple[str, ...]:
        """Return the note on state dimensions that are not used."""
        return self.notes

    def _freeze(self) -> None:
        """Freeze parameters by the config."""
        config, language = self.config, self.vlm.language_model
        if config.freeze_vision_encoder:
            self.vlm.vision_tower.requires_grad_(requires_grad=False)
        if config.freeze_language_encoder:
            language.requires_grad_(requires_grad=False)
        for name, parameter in self.transformer.named_parameters():
            trained = (
                config.train_soft_prompts
                if "soft_prompt" in name
                else config.train_policy_transformer
            )
            parameter.requires_grad_(trained)

    def compiled_modules(self) -> list[nn.Module]:
        """Return the vision encoder, the text encoder and the transformer's layers."""
        return [self.vlm.vision_tower, self.vlm.language_model.encoder, *self.transformer.blocks]


def _shape(config: XVlaConfig, florence: FlorenceSizes) -> TransformerSizes:
    return TransformerSizes(
        width=config.hidden_size,
        context_width=florence.vision.projection_dim,
        depth=config.depth,
        heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        domains=config.num_domains,
        action=config.action_sizes[0],
        state=config.state_size,
        time=config.dim_time,
        soft_prompts=config.len_soft_prompts,
        longest=config.max_len_seq,
        projections_by_domain=config.use_hetero_proj,
    )


def _state_notes(config: XVlaConfig) -> tuple[str, ...]:
    """Return a note if the network ignores a part of the state, as in LeRobot."""
    given, size = config.state_dim or 0, config.state_size
    if not size or given <= size:
        return ()
    return (f"only the first {size} of {given} state dimensions are used (--policy.max_state_dim)",)


_OTHER = "other"
_NAMED = {"vlm": "vlm", "soft_prompt": "soft_prompts"}
"""Substring of a parameter's name -> its parameter group."""


def parameter_groups(settings: dict[str, Any], network: nn.Module) -> list[dict[str, Any]]:
    """Return parameter groups with their own learning rates, as torch's optimisers take them.

    The vision-language model has a tenth of the learning rate; soft prompts have their own.
    """
    groups: dict[str, list[nn.Parameter]] = {"vlm": [], "soft_prompts": [], _OTHER: []}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            found = (group for part, group in _NAMED.items() if part in name.lower())
            groups[next(found, _OTHER)].append(parameter)
    warm_up = settings["soft_prompt_warmup_lr_scale"]
    soft_prompts = settings["soft_prompt_lr_scale"] if warm_up is None else warm_up
    rates = {"vlm": 0.1, "soft_prompts": soft_prompts, _OTHER: 1.0}
    decays = {"vlm": 0.1, "soft_prompts": 1.0, _OTHER: 1.0}
    return [
        {
            "params": parameters,
            "lr": settings["lr"] * rates[name],
            "weight_decay": settings["weight_decay"] * decays[name],
            "name": name,
        }
        for name, parameters in groups.items()
        if parameters
    ]
