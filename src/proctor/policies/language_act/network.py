"""ACT conditioned on language: ACT with a sentence embedding and a FiLM image encoder.

    instruction ─▶ word pieces ─▶ embeddings ─▶ mean ─▶ MLP ─▶ sentence
                                                               ├─▶ a token for ACT's encoder
    images ─▶ ResNet, each block scaled and shifted by FiLM ───┘   (FiLM, Perez et al., 2018)

The blocks of the ResNet have no normalisation layers and train from random weights: each is
initialised as the identity (De & Smith, 2020), and FiLM provides the bias. Nothing limits the scale
of their features, so the transformer normalises before attention (``pre_norm``). ``feature_norm``
and ``qk_norm`` limit what may still grow: features, sentence embeddings and attention logits. It
uses the channels_last memory format, the fastest on GPUs. docs/measurements.md compares it with
normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import STATE
from proctor.policies.act.network import Act
from proctor.policies.blocks.resnet import BLOCKS, OUT_CHANNELS
from proctor.policies.language_act.config import WORDS, LanguageActConfig
from proctor.policies.language_act.text_encoding import BUCKETS, MOST_PIECES
from proctor.policies.lerobot.config.feature_json import channels_first
from proctor.policies.runtime.network import LR_MULTIPLIER, ImageRegion, NoiseSpec

SENTENCE = "sentence"
"""Key of the sentence embedding, computed once, among the inputs."""
SHIFT, JITTER, WORD_DROP = "shift", "jitter", "heard"
"""Keys of the random numbers of augmentation: image shifts, state noise, dropped words."""
WIDTHS = (64, 128, 256, OUT_CHANNELS)
_EPSILON = 1e-6


class LanguageAct(Act):
    """The network; parameters that ACT has keep ACT's names."""

    config: LanguageActConfig
    n_further_vectors = 1

    def __init__(self, config: LanguageActConfig) -> None:
        super().__init__(config)
        width = config.dim_model
        self.word_embed = nn.Embedding(BUCKETS, width, padding_idx=0)
        self.sentence = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        if config.feature_norm:
            self.sentence_norm = nn.LayerNorm(width)
        if config.qk_norm:
            normalize_attention(self.encoder, self.decoder)
        draws = {**self.loss_draws, WORD_DROP: (NoiseSpec.UNIFORM, (config.most_words,))}
        if config.cameras:
            draws[SHIFT] = (NoiseSpec.UNIFORM, (len(config.cameras), 2))
        if config.state_dim is not None:
            draws[JITTER] = (NoiseSpec.NORMAL, (config.state_dim,))
        self.loss_draws = draws

    def make_backbone(self) -> nn.Module:
        """Return the language-conditioned image encoder."""
        return FilmEncoder(self.config)

    def decode(self, inputs: dict[str, Tensor], z: Tensor) -> Tensor:
        """Return the actions [B, T, A]; the sentence embedding is computed once."""
        return super().decode({**inputs, SENTENCE: self.encode_sentence(inputs[WORDS])}, z)

    def encode_sentence(self, words: Tensor) -> Tensor:
        """Return the sentence embedding [B, D] of word pieces [B, words, pieces]."""
        if self.training:
            mean = bucket_weights(words) @ self.word_embed.weight
        else:
            mean = self.mean_of_words(words)
        sentence: Tensor = self.sentence(mean)
        if self.config.feature_norm:  # the sum: no words are lost where units of the MLP are off
            sentence = self.sentence_norm(self.sentence[0](mean) + sentence)
        return sentence

    def mean_of_words(self, words: Tensor) -> Tensor:
        """Return the mean [B, D] over words of the mean over a word's pieces."""
        is_piece = (words != 0)[..., None]
        pieces = self.word_embed(words)
        each = (pieces * is_piece).sum(2) / is_piece.sum(2).clamp(min=1)
        is_word = is_piece.any(2)
        mean: Tensor = (each * is_word).sum(1) / is_word.sum(1).clamp(min=1)
        return mean

    def vectors(self, inputs: dict[str, Tensor], z: Tensor) -> list[Tensor]:
        """Return ACT's input tokens and the sentence embedding."""
        return [*super().vectors(inputs, z), inputs[SENTENCE]]

    def encode_camera(self, inputs: dict[str, Tensor], camera: str) -> Tensor:
        """Return a camera's feature map, conditioned on the sentence."""
        images = inputs[camera]
        if self.config.crop is not None and list(images.shape[-2:]) != self.config.crop[2:]:
            top, left, height, width = self.config.crop
            images = images[..., top : top + height, left : left + width]
        features: Tensor = self.backbone(images, inputs[SENTENCE])
        return features

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Let the image encoder's rate follow the optimiser's, in the config's ratio."""
        others, backbone = super().parameter_groups()
        config = self.config
        ratio = config.optimizer_lr_backbone / config.optimizer_lr if config.optimizer_lr else 1.0
        return [others, {"params": backbone["params"], LR_MULTIPLIER: ratio}]

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return ACT's loss; in training, of an augmented batch."""
        return super().loss(self.augment(batch, draws) if self.training else batch, draws)

    def training_regions(self) -> dict[str, ImageRegion]:
        """Return the crop with the pixels that a random shift moves into it."""
        config, regions = self.config, {}
        if config.crop is None:
            return {}
        (top, left, height, width), most = config.crop, config.random_shift
        for camera in config.cameras:
            whole = channels_first(config.input_features[camera])[1:]
            first = max(0, top - most), max(0, left - most)
            last = min(whole[0], top + height + most), min(whole[1], left + width + most)
            size = last[0] - first[0], last[1] - first[1]
            if size != whole:
                regions[camera] = (*first, *size)
        return regions

    def _crop_of(self, camera: str, images: Tensor) -> Sequence[int] | None:
        """Return the crop within ``images``: whole ones, or the camera's training region."""
        crop, region = self.config.crop, self.training_regions().get(camera)
        if crop is None or region is None or tuple(images.shape[-2:]) != region[2:]:
            return crop
        return [crop[0] - region[0], crop[1] - region[1], *crop[2:]]

    def augment(self, batch: dict[str, Tensor], draws: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return an augmented batch: shifted and cropped images, noisy states, dropped words."""
        config, out = self.config, dict(batch)
        for number, camera in enumerate(config.cameras):
            by, crop = draws[SHIFT][:, number], self._crop_of(camera, batch[camera])
            out[camera] = shift_images(batch[camera], by, config.random_shift, crop)
        if config.state_dim is not None:
            out[STATE] = batch[STATE] + config.state_noise * draws[JITTER]
        kept = draws[WORD_DROP] >= config.word_dropout
        out[WORDS] = batch[WORDS] * kept[..., None]
        return out


class FilmEncoder(nn.Module):
    """ResNet with FiLM: images [B, 3, H, W] to feature maps [B, 512, H/16, W/16].

    Sizes are rounded up; without dilation they are H/32 and W/32.
    """

    def __init__(self, config: LanguageActConfig) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        last = 1 if config.replace_final_stride_with_dilation else 2
        blocks, before = [], WIDTHS[0]
        sizes = BLOCKS[config.vision_backbone]
        for width, n_blocks, stride in zip(WIDTHS, sizes, (1, 2, 2, last), strict=True):
            for number in range(n_blocks):
                blocks.append(
                    FilmBlock(
                        before,
                        width,
                        stride if number == 0 else 1,
                        config.dim_model,
                        normalize=bool(config.feature_norm),
                    )
                )
                before = width
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTHS[-1]) if config.feature_norm else None
        nn.init.kaiming_normal_(self.stem.weight)

    def forward(self, images: Tensor, sentence: Tensor) -> Tensor:
        """Return the feature map for images and sentence embeddings [B, D]."""
        x = self.pool(self.stem(images.contiguous(memory_format=torch.channels_last)))
        for block in self.blocks:
            x = block(x, sentence)
        x = F.relu(x)
        if self.norm is None:
            return x
        normed: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normed


class FilmBlock(nn.Module):
    """Residual block of two convolutions, with FiLM by the sentence embedding between them.

    With ``normalize``, the convolutions get the input divided by its root mean square, one number
    for each image: each block can add to the features' scale, but not multiply it.
    """

    def __init__(
        self, before: int, width: int, stride: int, sentence_width: int, *, normalize: bool
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.film = nn.Linear(sentence_width, 2 * width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            nn.init.kaiming_normal_(self.shortcut.weight, nonlinearity="linear")
        nn.init.kaiming_normal_(self.conv1.weight)
        for parameter in (self.film.weight, self.film.bias, self.conv2.weight):
            nn.init.zeros_(parameter)  # a new block is its shortcut, without conditioning

    def forward(self, x: Tensor, sentence: Tensor) -> Tensor:
        """Return [B, width, H / stride, W / stride]."""
        scale, shift = self.film(sentence)[..., None, None].chunk(2, 1)
        factor = 1 + scale
        if self.normalize:  # after the convolution, which is linear: no further pass over the image
            mean_square = x.float().square().mean((1, 2, 3), keepdim=True)
            factor = factor * torch.rsqrt(mean_square + _EPSILON).to(x.dtype)
        modulated = torch.addcmul(shift, self.conv1(F.relu(x)), factor)
        out: Tensor = self.shortcut(x) + self.conv2(F.relu(modulated))
        return out


class QkNormAttention(nn.MultiheadAttention):
    """Attention over [B, n, D] whose queries and keys are normalised in each head.

    Logits are then bounded by the norms' weights, however large the projections grow (Dehghani et
    al., 2023).
    """

    def __init__(self, usual: nn.MultiheadAttention) -> None:
        """Take over the projections of ``usual``."""
        super().__init__(usual.embed_dim, usual.num_heads, usual.dropout, batch_first=True)
        self.in_proj_weight, self.in_proj_bias = usual.in_proj_weight, usual.in_proj_bias
        self.out_proj = usual.out_proj
        self.q_norm = nn.RMSNorm(self.head_dim, eps=_EPSILON)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=_EPSILON)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, None]:
        """Return [B, n, D], and no weights."""
        assert key_padding_mask is None  # the encoder and the decoder of ACT ask for neither
        assert not need_weights
        q, k, v = (
            F.linear(x, weight, bias).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
            for x, weight, bias in zip(
                (query, key, value),
                cast(Tensor, self.in_proj_weight).chunk(3),
                cast(Tensor, self.in_proj_bias).chunk(3),
                strict=True,
            )
        )
        q, k = self.q_norm(q.float()).to(v.dtype), self.k_norm(k.float()).to(v.dtype)
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out, None


def normalize_attention(*stacks: nn.Module) -> None:
    """Replace the attention of transformer layers by one that normalises queries and keys."""
    for stack in stacks:
        for module in list(stack.modules()):
            for name, child in list(module.named_children()):
                if type(child) is nn.MultiheadAttention:
                    setattr(module, name, QkNormAttention(child))


def bucket_weights(words: Tensor) -> Tensor:
    """Return the weight [B, BUCKETS] of each piece in the mean over words; padding weighs 0.

    A matrix product with the embeddings has a cheap gradient: that of a lookup of all pieces sorts
    them in every step. The sums are of integers, so that their order does not matter.
    """
    is_piece = words != 0
    n_pieces = is_piece.sum(2, keepdim=True)
    n_words = (n_pieces != 0).sum(1)
    each = is_piece * (_ONE // n_pieces.clamp(min=1))
    sums = each.new_zeros(len(words), BUCKETS).scatter_add_(1, words.flatten(1), each.flatten(1))
    return sums / (_ONE * n_words.clamp(min=1))


_ONE = math.lcm(*range(1, MOST_PIECES + 1))
"""The weight of a word, in units of which every share of its pieces is an integer."""


def shift_images(
    images: Tensor, uniforms: Tensor, most: int, crop: Sequence[int] | None = None
) -> Tensor:
    """Shift each image of [B, 3, H, W] by up to ``most`` pixels; border pixels are repeated.

    ``uniforms`` [B, 2] in [0, 1] give the vertical and the horizontal shift. ``crop`` is [top,
    left, height, width] of the shifted images; other pixels are not read.
    """
    height, width = images.shape[-2:]
    top, left, out_height, out_width = crop or (0, 0, height, width)
    device = images.device
    by = (uniforms * (2 * most + 1)).long() - most
    y = (torch.arange(top, top + out_height, device=device) + by[:, :1]).clamp(0, height - 1)
    x = (torch.arange(left, left + out_width, device=device) + by[:, 1:]).clamp(0, width - 1)
    row = torch.arange(len(images), device=device)[:, None, None]
    return images.permute(0, 2, 3, 1)[row, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
