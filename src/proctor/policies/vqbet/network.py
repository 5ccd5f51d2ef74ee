"""VQ-BeT (Lee et al., 2024): a transformer predicts VQ codes of action chunks.

    image ─▶ ResNet ─▶ token ────────┐
    state ─▶ token ──────────────────┤   for each of the last n_obs_steps observations,
    learned action token ────────────┘   then n_action_pred_token - 1 more action tokens
                                     ▼
                                    GPT
                                     ▼ at every action token
              two codes ─▶ decoded action chunk + predicted offset of these codes

Training has two phases (codes.py). Phase 1 learns the codebooks from actions alone; phase 2 freezes
them and trains everything else. The weights hold the phase (``discretized``). All values are
normalised; B is the batch, O the observed steps, S the predicted chunks, W the length of a chunk, A
the action size, C the codes of a codebook.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, STATE
from proctor.policies.blocks.pretrained_resnet import load_backbones
from proctor.policies.blocks.rgb_encoder import RgbEncoder, encode_history
from proctor.policies.runtime.network import LR_FLAG, Network, NoiseSpec, gumbel
from proctor.policies.vqbet.codes import N_LAYERS, VqVae
from proctor.policies.vqbet.config import VqBetConfig
from proctor.policies.vqbet.gpt import Gpt

CODES, CROP = "codes", "crop"
_GAMMA = 2
"""Exponent of the focal loss (Lin et al., 2017), which down-weights easy predictions."""


class VqBet(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = True
    select_target_actions_indices: Tensor

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.gpt_input_dim
        assert config.state_dim is not None  # as the config has checked
        self.rgb_encoder = RgbEncoder(config)
        self.action_token = nn.Parameter(torch.randn(1, 1, width))
        self.state_projector = nn.Sequential(nn.Linear(config.state_dim, width))
        n_seen = 2 * config.spatial_softmax_num_keypoints
        self.rgb_feature_projector = nn.Sequential(nn.Linear(n_seen, width))
        self.policy = Gpt(config)
        self.action_head = VqBetHead(config)
        starts = torch.arange(config.n_chunks)[:, None]
        chunks = starts + torch.arange(config.action_chunk_size)
        self.register_buffer("select_target_actions_indices", chunks)
        codes = (N_LAYERS, config.vqvae_n_embed)
        self.draws = {CODES: (NoiseSpec.UNIFORM, codes)}
        self.loss_draws = {CODES: (NoiseSpec.UNIFORM, (config.n_chunks, *codes))}
        if config.crop_shape is not None and config.crop_is_random:
            self.loss_draws[CROP] = (NoiseSpec.UNIFORM, (2,))

    def load_pretrained(self) -> None:
        """Load the ImageNet weights of the image encoder, if the config asks for them."""
        load_backbones(
            self.config, [self.rgb_encoder.backbone], group_norm=self.config.use_group_norm
        )

    @property
    def codes(self) -> VqVae:
        """The VQ-VAE, which phase 1 trains."""
        return self.action_head.vqvae_model

    def tokens(self, inputs: dict[str, Tensor], places: Tensor | None = None) -> Tensor:
        """Return the tokens [B, 3 O, D] of observations; ``places`` [B, 2] are crop offsets."""
        seen = encode_history(self.rgb_encoder, inputs[self.config.cameras[0]], places)
        action_token = self.action_token.expand(*seen.shape[:2], -1)
        kinds = [
            self.rgb_feature_projector(seen),
            self.state_projector(inputs[STATE]),
            action_token,
        ]
        return torch.stack(kinds, 2).flatten(1, 2)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the chunk [B, W, A] that starts at the newest observation.

        It needs no later action tokens, since attention is causal.
        """
        feature = self.policy(self.tokens(inputs))[:, -1]
        _, codes = self.action_head.sample_codes(feature, draws[CODES])
        return self.action_head.decode(feature, codes)[0]

    def features(self, inputs: dict[str, Tensor], places: Tensor | None = None) -> Tensor:
        """Return the transformer's features at each action token, [B, S, D]."""
        tokens = self.tokens(inputs, places)
        more = self.action_token.expand(len(tokens), self.config.n_action_pred_token - 1, -1)
        features = self.policy(torch.cat([tokens, more], 1))
        n = tokens.shape[1]
        return torch.cat([features[:, 2:n:3], features[:, n:]], 1)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the VQ-VAE's loss in phase 1, and the loss of the predicted codes in phase 2.

        Padded actions count: they repeat the last action.
        """
        chunks = batch[ACTION][:, self.select_target_actions_indices].flatten(0, 1)
        if not self.codes.discretized:
            return self.codes.loss(chunks)
        places = draws.get(CROP) if self.training else None
        features = self.features(batch, places).flatten(0, 1)
        return self.action_head.loss(features, draws[CODES].flatten(0, 1), chunks)

    def training_notes(self, steps: int) -> tuple[str, ...]:
        """Note a training that ends before phase 2 starts."""
        first = self.config.n_vqvae_training_steps
        if self.codes.discretized or steps > first:
            return ()
        return (
            f"all {steps:,} steps train the VQ-VAE (phase 1); the policy itself is trained after "
            f"--policy.n_vqvae_training_steps={first}",
        )

    @property
    def adapter_conflict(self) -> str | None:
        """Why adapters cannot be trained: in phase 1 the codebooks change, which are buffers."""
        return None if self.codes.discretized else "its VQ codebooks are still trained"

    def after_update(self, step: int) -> None:
        """Freeze the codebooks at the end of phase 1."""
        if step >= self.config.n_vqvae_training_steps:
            self.codes.freeze()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return LeRobot's groups in its order; the VQ-VAE has its own lr and weight decay."""
        config, head = self.config, self.action_head
        decayed, plain = self.policy.by_decay()
        decayed += [*self.rgb_encoder.parameters(), *self.state_projector.parameters()]
        decayed += [*self.rgb_feature_projector.parameters(), self.action_token]
        decayed += head.map_to_cbet_preds_offset.parameters()
        for predictor in head.predictors():
            decayed += predictor.parameters()
        codes = [*self.codes.encoder.parameters(), *self.codes.decoder.parameters()]
        own = {
            "weight_decay": config.optimizer_vqvae_weight_decay,
            "lr": config.optimizer_vqvae_lr,
            LR_FLAG: "policy.optimizer_vqvae_lr",
        }
        return [
            {"params": decayed},
            {"params": codes, **own},
            {"params": plain, "weight_decay": 0.0},
        ]

    def compiled_modules(self) -> list[nn.Module]:
        """Compile the image backbone and the transformer."""
        return [self.rgb_encoder.backbone, self.policy]


class VqBetHead(nn.Module):
    """Predicts two codes from a feature [N, D], and decodes them to an action chunk."""

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.config = config
        self.vqvae_model = VqVae(config)
        n, width = config.vqvae_n_embed, config.gpt_output_dim
        if config.sequentially_select:
            self.map_to_cbet_preds_primary_bin = nn.Sequential(nn.Linear(width, n))
            self.map_to_cbet_preds_secondary_bin = nn.Sequential(nn.Linear(width + n, n))
        else:
            self.map_to_cbet_preds_bin = nn.Sequential(nn.Linear(width, N_LAYERS * n))
        n_offsets = N_LAYERS * n * config.action_chunk_size * config.action_dim
        self.map_to_cbet_preds_offset = nn.Sequential(nn.Linear(width, n_offsets))

    def predictors(self) -> list[nn.Module]:
        """Return the layers that predict codes."""
        if self.config.sequentially_select:
            return [self.map_to_cbet_preds_primary_bin, self.map_to_cbet_preds_secondary_bin]
        return [self.map_to_cbet_preds_bin]

    def sample_codes(self, x: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, 2, C] and codes [N, 2] sampled from them with ``uniform`` noise."""
        n, temperature = self.config.vqvae_n_embed, self.config.bet_softmax_temperature
        noise = gumbel(uniform)  # [N, 2, C]
        if not self.config.sequentially_select:
            logits = self.map_to_cbet_preds_bin(x).unflatten(1, (N_LAYERS, n))
            return logits, (logits / temperature + noise).argmax(-1)
        first = self.map_to_cbet_preds_primary_bin(x)
        primary = (first / temperature + noise[:, 0]).argmax(-1)
        conditioned = torch.cat([x, F.one_hot(primary, n).to(x.dtype)], 1)
        second = self.map_to_cbet_preds_secondary_bin(conditioned)
        secondary = (second / temperature + noise[:, 1]).argmax(-1)
        return torch.stack([first, second], 1), torch.stack([primary, secondary], 1)

    def decode(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chunks [N, W, A] of codes [N, 2], with and without predicted offsets."""
        n = self.config.vqvae_n_embed
        offsets = self.map_to_cbet_preds_offset(x).unflatten(1, (N_LAYERS, n, -1))
        chosen = offsets.take_along_dim(codes[..., None, None], 2).squeeze(2).sum(1)
        plain = self.vqvae_model.decode(codes)
        return plain + chosen.unflatten(1, self.vqvae_model.chunk_shape), plain

    def loss(self, x: Tensor, uniform: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of predicted codes and chunks [N, W, A], and its terms."""
        config = self.config
        wanted = self.vqvae_model.encode(actions)
        logits, codes = self.sample_codes(x, uniform)
        predicted, plain = self.decode(x, codes)
        offset_loss = F.l1_loss(predicted, actions)
        first, second = (_focal_loss(logits[:, i], wanted[:, i]) for i in range(N_LAYERS))
        code_loss = (
            config.primary_code_loss_weight * first + config.secondary_code_loss_weight * second
        )
        with torch.no_grad():
            errors, right = (actions - predicted).abs(), (wanted == codes).float().mean(0)
            parts = {
                "classification_loss": code_loss.detach(),
                "offset_loss": offset_loss.detach(),
                "equal_primary_code_rate": right[0],
                "equal_secondary_code_rate": right[1],
                "vq_action_error": (actions - plain).abs().mean(),
                "offset_action_error": errors.mean(),
                "action_error_max": errors.max(),
                "action_mse_error": (errors**2).mean(),
            }
        return code_loss + config.offset_loss_weight * offset_loss, parts


def _focal_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1).take_along_dim(wanted[:, None], 1)
    return -((1 - log_p.exp()) ** _GAMMA * log_p).mean()
