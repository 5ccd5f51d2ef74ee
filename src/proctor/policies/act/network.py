"""ACT, Action Chunking with Transformers (Zhao et al., 2023); its layers are in transformer.py.

    training only                          always
    -------------                          ------
    [CLS, state, actions]                  images ─▶ ResNet ─▶ tokens (+ 2-D positions)
           │ VAE encoder                   state, environment state ─▶ tokens (+ learned positions)
           ▼                                        │
    mean, log variance ─▶ latent z ─▶ token ────────┤   (rollouts: z = 0)
                                                    ▼
                                            transformer encoder
                                                    ▼ keys and values
               chunk_size learned queries ─▶ transformer decoder ─▶ chunk_size actions

The latent z holds the style of the demonstrator, which the observation does not show. In a rollout
z is the prior's mean, so ACT is deterministic. All values are normalised; B is the batch, D
``dim_model``, T ``chunk_size``, A the action size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, ENVIRONMENT_STATE, STATE
from proctor.policies.act.config import ActConfig
from proctor.policies.act.transformer import DetrDecoder, DetrEncoder
from proctor.policies.blocks.layers import masked_mean
from proctor.policies.blocks.pretrained_resnet import load_backbones
from proctor.policies.blocks.resnet import OUT_CHANNELS, FrozenBatchNorm2d, ResNet
from proctor.policies.runtime.network import LR_FLAG, Network, NoiseSpec

LATENT = "latent"


class Act(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = False
    loss_supports_cuda_graph = True
    n_further_vectors = 0
    """Additional encoder tokens of a variant, besides latent and states."""
    vae_encoder_pos_enc: Tensor

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.config = config
        width = config.dim_model
        # In LeRobot's order: saved optimiser state refers to parameters by their index.
        if config.use_vae:
            self.loss_draws = {LATENT: (NoiseSpec.NORMAL, (config.latent_dim,))}
            self._build_vae()
        if config.cameras:
            self.backbone = self.make_backbone()
        self.encoder = DetrEncoder(config, config.n_encoder_layers)
        self.decoder = DetrDecoder(config)
        if config.state_dim is not None:
            self.encoder_robot_state_input_proj = nn.Linear(config.state_dim, width)
        if config.env_dim is not None:
            self.encoder_env_state_input_proj = nn.Linear(config.env_dim, width)
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, width)
        if config.cameras:
            self.encoder_img_feat_input_proj = nn.Conv2d(OUT_CHANNELS, width, 1)
        n_vectors = 1 + (config.state_dim is not None) + (config.env_dim is not None)
        n_vectors += self.n_further_vectors
        self.encoder_1d_feature_pos_embed = nn.Embedding(n_vectors, width)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, width)
        self.action_head = nn.Linear(width, config.action_dim)
        for parameter in [*self.encoder.parameters(), *self.decoder.parameters()]:
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def make_backbone(self) -> nn.Module:
        """Return the image backbone: images to feature maps [B, 512, h, w]."""
        dilate = self.config.replace_final_stride_with_dilation
        return ResNet(self.config.vision_backbone, FrozenBatchNorm2d, dilate_last=dilate)

    def load_pretrained(self) -> None:
        """Load the ImageNet weights of the image encoder, if the config asks for them."""
        load_backbones(self.config, [self.backbone] if self.config.cameras else [])

    def _build_vae(self) -> None:
        config, width = self.config, self.config.dim_model
        self.vae_encoder = DetrEncoder(config, config.n_vae_encoder_layers)
        self.vae_encoder_cls_embed = nn.Embedding(1, width)
        if config.state_dim is not None:
            self.vae_encoder_robot_state_input_proj = nn.Linear(config.state_dim, width)
        self.vae_encoder_action_input_proj = nn.Linear(config.action_dim, width)
        self.vae_encoder_latent_output_proj = nn.Linear(width, 2 * config.latent_dim)
        n_tokens = 1 + (config.state_dim is not None) + config.chunk_size
        table = sinusoid(torch.arange(n_tokens, dtype=torch.float32), width)
        self.register_buffer("vae_encoder_pos_enc", table[None])

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the chunk [B, T, A] for observations, with the latent at the prior's mean."""
        reference = next(iter(inputs.values()))
        dtype = self.action_head.weight.dtype
        z = torch.zeros(
            len(reference), self.config.latent_dim, device=reference.device, dtype=dtype
        )
        return self.decode(inputs, z)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the L1 loss over unpadded actions plus the weighted KL divergence of z."""
        actions, is_pad = batch[ACTION], batch["action_is_pad"]
        if self.config.use_vae:
            mean, log_variance = self.encode_actions(batch)
            z = mean + (log_variance / 2).exp() * draws[LATENT]
            predicted = self.decode(batch, z)
        else:
            predicted = self.chunk(batch, {})
        l1 = masked_mean(F.l1_loss(predicted, actions, reduction="none"), is_pad)
        if not self.config.use_vae:
            return l1, {"l1_loss": l1.detach()}
        per_row = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
        kl = per_row.mean()
        parts = {"l1_loss": l1.detach(), "kld_loss": kl.detach()}
        return l1 + self.config.kl_weight * kl, parts

    def encode_actions(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean and log variance [B, latent_dim] of z for demonstrated actions."""
        actions, is_pad = batch[ACTION], batch["action_is_pad"]
        cls = self.vae_encoder_cls_embed.weight[None].expand(len(actions), -1, -1)
        tokens = [cls]
        if self.config.state_dim is not None:
            tokens.append(self.vae_encoder_robot_state_input_proj(batch[STATE])[:, None])
        n_vectors = len(tokens)
        tokens.append(self.vae_encoder_action_input_proj(actions))
        ignore = F.pad(is_pad, (n_vectors, 0), value=False)
        encoded = self.vae_encoder(torch.cat(tokens, 1), self.vae_encoder_pos_enc, ignore)
        mean, log_variance = self.vae_encoder_latent_output_proj(encoded[:, 0]).chunk(2, dim=-1)
        return mean, log_variance

    def decode(self, inputs: dict[str, Tensor], z: Tensor) -> Tensor:
        """Return the actions [B, T, A] for observations and a latent z [B, latent_dim]."""
        tokens = [torch.stack(self.vectors(inputs, z), 1)]
        positions = [self.encoder_1d_feature_pos_embed.weight]
        for camera in self.config.cameras:
            features = self.encoder_img_feat_input_proj(self.encode_camera(inputs, camera))
            tokens.append(features.flatten(2).transpose(1, 2))  # row by row: [B, h * w, D]
            positions.append(image_positions(features))
        position = torch.cat(positions)[None]
        memory = self.encoder(torch.cat(tokens, 1), position)
        queries = self.decoder_pos_embed.weight[None]
        actions: Tensor = self.action_head(self.decoder(memory, position, queries))
        return actions

    def vectors(self, inputs: dict[str, Tensor], z: Tensor) -> list[Tensor]:
        """Return the encoder tokens of latent and states, each [B, D]."""
        vectors = [self.encoder_latent_input_proj(z)]
        if self.config.state_dim is not None:
            vectors.append(self.encoder_robot_state_input_proj(inputs[STATE]))
        if self.config.env_dim is not None:
            vectors.append(self.encoder_env_state_input_proj(inputs[ENVIRONMENT_STATE]))
        return vectors

    def encode_camera(self, inputs: dict[str, Tensor], camera: str) -> Tensor:
        """Return the feature map [B, 512, h, w] of a camera."""
        features: Tensor = self.backbone(inputs[camera])
        return features

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Give the backbone its own learning rate; LeRobot has this group even if it is empty."""
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        backbone = [p for name, p in named if name.startswith("backbone.")]
        others = [p for name, p in named if not name.startswith("backbone.")]
        own = {
            "params": backbone,
            "lr": self.config.optimizer_lr_backbone,
            LR_FLAG: "policy.optimizer_lr_backbone",
        }
        return [{"params": others}, own]

    def new_episode(self) -> TemporalEnsemble | None:
        """Return fresh averages where overlapping chunks are averaged."""
        coeff = self.config.temporal_ensemble_coeff
        return None if coeff is None else TemporalEnsemble(coeff, self.config.chunk_size)

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Return the chunks, or with temporal ensembling the one averaged action of each."""
        if self.config.temporal_ensemble_coeff is None:
            return chunks
        rows = [state.update(chunk) for state, chunk in zip(states, chunks, strict=True)]
        return torch.stack(rows)[:, None]

    def compiled_modules(self) -> list[nn.Module]:
        """Compile backbone and transformer; the glue between them is cheap."""
        parts: list[nn.Module] = [self.encoder, self.decoder]
        return [self.backbone, *parts] if self.config.cameras else parts


def sinusoid(values: Tensor, width: int) -> Tensor:
    """Return [n, width]: sines in even columns, cosines in odd ones, at geometric frequencies."""
    pair = torch.arange(width, device=values.device) // 2
    angles = values[:, None] / 10000 ** (2 * pair / width)
    even = torch.arange(width, device=values.device) % 2 == 0
    return torch.where(even, angles.sin(), angles.cos())


def image_positions(features: Tensor) -> Tensor:
    """Return positions [h * w, D] of a feature map [B, D, h, w]: half for y, half for x.

    As in DETR, coordinates run from 1 and are scaled to 2 pi. All cameras get the same positions,
    so ACT cannot tell one camera from another by them.
    """
    _, width, h, w = features.shape
    halves = []
    for size in (h, w):
        steps = torch.arange(1, size + 1, device=features.device, dtype=torch.float32)
        halves.append(sinusoid(steps / (size + 1e-6) * 2 * math.pi, width // 2))
    y = halves[0][:, None].expand(h, w, -1)
    x = halves[1][None].expand(h, w, -1)
    return torch.cat([y, x], dim=-1).reshape(h * w, width).to(features.dtype)


class TemporalEnsemble:
    """The running averages of one episode: the mean prediction of all chunks for each coming step.

    The prediction of the i-th oldest chunk has the weight exp(-coeff * i): a positive ``coeff``
    favours old predictions, 0 is the plain mean.
    """

    def __init__(self, coeff: float, chunk_size: int) -> None:
        self.weights = torch.exp(-coeff * torch.arange(chunk_size))
        self.total = torch.cumsum(self.weights, 0)
        self.averages: Tensor | None = None  # [steps ahead, A]
        self.counts = torch.empty(0, dtype=torch.long)  # predictions in each average

    def update(self, chunk: Tensor) -> Tensor:
        """Add the newest chunk [T, A] and return the averaged action [A] of the current step."""
        if self.averages is None:
            merged, counts = chunk, torch.ones(len(chunk), dtype=torch.long)
        else:
            n = len(self.averages)
            old_total, weight = self.total[self.counts - 1], self.weights[self.counts]
            summed = self.averages * old_total[:, None] + chunk[:n] * weight[:, None]
            merged = torch.cat([summed / self.total[self.counts][:, None], chunk[n:]])
            fresh = torch.ones(len(chunk) - n, dtype=torch.long)
            counts = torch.cat([self.counts + 1, fresh])
        self.averages, self.counts = merged[1:], counts[1:]
        return merged[0]
