"""X-VLA (Zheng et al., 2025): clean actions are predicted from noisy ones, under what is seen.

    first camera ─▶ DaViT ─▶ tokens ┐
    words ──────────────────────────┴▶ BART's encoder ─▶ read ┐
    other cameras ─▶ DaViT ─▶ tokens ─────────────────▶ seen ─┴▶ transformer ─▶ clean actions
                                           noisy actions, state, time ─┘

Florence-2 looks and reads once a query; every denoising step asks the transformer alone. It
predicts actions and no velocity: x_t = t noise + (1 - t) clean. B is the batch, T the chunk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_TOKENS, STATE
from proctor.policies.lerobot.language import Tokenize, check_prompt_length
from proctor.policies.lerobot.step import ProcessorStep
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
_WORDS = "vlm.language_model.shared.weight"
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
"""From the names of Florence-2's first code, which published X-VLAs have, to transformers' own."""


class FlorenceEncoder(nn.Module):
    """What X-VLA uses of Florence-2; attribute names are those of transformers."""

    def __init__(self, config: FlorenceSizes) -> None:
        super().__init__()
        self.vision_tower = DavitEncoder(config.vision)
        self.multi_modal_projector = FlorenceProjector(config.vision)
        self.language_model = BartModel(config.text)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def encode_images(self, images: Tensor) -> Tensor:
        """Return tokens [N, 1 + h x w, D] for pictures [N, 3, H, W]."""
        out: Tensor = self.multi_modal_projector(self.vision_tower(images))
        return out

    def read(self, seen: Tensor, tokens: Tensor) -> Tensor:
        """Return what is understood of a view [B, n, D] and words int64 [B, L]: [B, n + L, D]."""
        words = self.language_model.embed(tokens)
        out: Tensor = self.language_model.encoder(torch.cat([seen, words], dim=1))
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
        self.notes = _remarks(config)
        self._freeze()

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return actions [B, T, A]: a guess, mixed with the same noise again, step by step."""
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
        """Return the sum of what is wrong with positions, rotations, grippers, joints.

        Times are spread evenly over the batch, from one draw on. Actions after an episode's end are
        learnt as they come, as in LeRobot.
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
        """As many as it has vectors for."""
        return self.vlm.language_model.shared.num_embeddings

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Check that there is such a kind of robot as the steps before the network say.

        Raises:
            UsageError: there is none, or words are filled up to the longest of a batch: padding is
                read here, so that what is done would depend on what else is in the batch.
        """
        most = self.config.num_domains
        check_prompt_length(steps, self.config.tokenizer_max_length)
        kinds = [type(step) for step in steps]
        if ImageScale in kinds and ImageToFloat in kinds[kinds.index(ImageScale) :]:
            raise UsageError(
                f"{ImageScale.registry_name} is before {ImageToFloat.registry_name}, by which each "
                "picture would be scaled by what is in it"
            )
        for step in steps:
            if isinstance(step, Tokenize) and step.padding != "max_length":
                raise UsageError(
                    f"{step.registry_name}: padding is {step.padding!r}, and X-VLA reads padding: "
                    "its actions would depend on the batch (say max_length)"
                )
            if isinstance(step, AddDomain) and step.domain_id >= most:
                raise UsageError(
                    f"{step.registry_name}: domain_id is {step.domain_id} (choose 0-{most - 1})"
                )

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights by the names they have here: of files from before transformers had them.

        Words have two names in Florence-2, of which a file may have either.
        """
        named = dict(self._remapped(name, value) for name, value in stored.items())
        words = named.pop(_TIED, None)
        if words is not None:
            named.setdefault(_WORDS, words)
        named.pop("vlm.language_model.final_logits_bias", None)
        return named

    def _remapped(self, name: str, value: Tensor) -> tuple[str, Tensor]:
        if name == "vlm.image_projection":
            return "vlm.multi_modal_projector.image_projection.weight", value.t().contiguous()
        for old, new in _RENAMED:
            name = old.sub(new, name)
        return name, value

    def context(self, inputs: dict[str, Tensor]) -> tuple[DenoisingContext, Tensor]:
        """Return what a query's steps share, and the state [B, S] as the transformer sees it."""
        tokens = inputs[LANGUAGE_TOKENS].long()
        read, seen = self.encode_observation(self.views(inputs), tokens)
        domain = self._domain(inputs, tokens)
        context = self.transformer.context(domain, read, seen, self.config.chunk_size)
        return context, self.space.mask_grippers(self._state(inputs, read))

    def views(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the cameras' pictures [B, cameras, 3, H, W], scaled."""
        size = self.config.resize_imgs_with_padding
        images = [inputs[key].to(self.input_dtype) for key in self.config.cameras]
        return torch.stack(
            [i if size is None else resize_with_padding(i, *size) for i in images], dim=1
        )

    def encode_observation(self, views: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is read beside the first view, and what is seen in the others, [B, n, D].

        Views that are of nothing are zeros.
        """
        batch, cameras = views.shape[:2]
        looked = self.vlm.encode_images(views.flatten(0, 1))
        looked = looked.reshape(batch, cameras, *looked.shape[1:])
        others = looked[:, 1:].flatten(1, 2)
        empty = (self.config.n_views - cameras) * looked.shape[2]
        return self.vlm.read(looked[:, 0], tokens), F.pad(others, (0, 0, 0, empty))

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
        """Say what it will not learn from."""
        return self.notes

    def _freeze(self) -> None:
        """Leave out of a training what its config says."""
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
        """Return the image encoder, what reads, and the transformer's layers."""
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


def resize_with_padding(images: Tensor, height: int, width: int) -> Tensor:
    """Return pictures [B, 3, H, W] scaled into a size, left and top filled up with zeros."""
    now = images.shape[-2:]
    if now == (height, width):
        return images
    ratio = max(now[1] / width, now[0] / height)
    size = int(now[0] / ratio), int(now[1] / ratio)
    scaled = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    return F.pad(scaled, (width - size[1], 0, height - size[0], 0))


def _remarks(config: XVlaConfig) -> tuple[str, ...]:
    """Say so where a part of the state is not looked at, as in LeRobot."""
    given, size = config.state_dim or 0, config.state_size
    if not size or given <= size:
        return ()
    return (f"of {given} numbers of the state the first {size} are seen (--policy.max_state_dim)",)
