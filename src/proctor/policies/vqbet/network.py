"""VQ-BeT (Lee et al., 2024): actions as codes, which a transformer predicts from observations.

    o observation's image ─▶ ResNet ─▶ token ┐
                            state ─▶ token ──┤        for each of the last n_obs_steps, and in the
                  learned question ─▶ token ─┘        end n_action_pred_token - 1 questions more
                                             ▼
                                            GPT
                                             ▼ at every question
                      two codes ─▶ stretch of actions + offsets of these codes

A training has two phases (codes.py): first the codes are learnt from actions alone, then, with the
codes as they are, all else. Which it is stands in the weights (``discretized``). Everything works
on normalised values; B is the batch, O the observed steps, S the stretches, W the actions of one, A
the action size, C the codes of a layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, STATE
from proctor.policies.blocks.rgb_encoder import RgbEncoder
from proctor.policies.runtime.network import Network, NoiseSpec, gumbel
from proctor.policies.vqbet.codes import N_LAYERS, VqVae
from proctor.policies.vqbet.config import VqBetConfig
from proctor.policies.vqbet.gpt import Gpt

CODES, CROP = "codes", "crop"
_GAMMA = 2
"""Of the focal loss (Lin et al., 2017): what is predicted well already counts less."""


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
        self.action_head = Head(config)
        starts = torch.arange(config.n_stretches)[:, None]
        stretches = starts + torch.arange(config.action_chunk_size)
        self.register_buffer("select_target_actions_indices", stretches)
        codes = (N_LAYERS, config.vqvae_n_embed)
        self.draws = {CODES: (NoiseSpec.UNIFORM, codes)}
        self.loss_draws = {CODES: (NoiseSpec.UNIFORM, (config.n_stretches, *codes))}
        if config.crop_shape is not None and config.crop_is_random:
            self.loss_draws[CROP] = (NoiseSpec.UNIFORM, (2,))

    @property
    def codes(self) -> VqVae:
        """What the first phase learns."""
        return self.action_head.vqvae_model

    def tokens(self, inputs: dict[str, Tensor], places: Tensor | None = None) -> Tensor:
        """Return the tokens [B, 3 O, D] of observations; ``places`` [B, 2] says where to crop."""
        images = inputs[self.config.cameras[0]]  # [B, O, 3, H, W]
        shape = images.shape[:2]
        where = None if places is None else places.repeat_interleave(shape[1], 0)
        seen = self.rgb_encoder(images.flatten(0, 1), where).unflatten(0, shape)
        question = self.action_token.expand(*shape, -1)
        kinds = [self.rgb_feature_projector(seen), self.state_projector(inputs[STATE]), question]
        return torch.stack(kinds, 2).flatten(1, 2)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the stretch [B, W, A] from the newest observation on.

        Later questions are not asked: what comes before does not attend to them.
        """
        answer = self.policy(self.tokens(inputs))[:, -1]
        _, codes = self.action_head.choose(answer, draws[CODES])
        return self.action_head.decode(answer, codes)[0]

    def answers(self, inputs: dict[str, Tensor], places: Tensor | None = None) -> Tensor:
        """Return what the transformer says to each question, [B, S, D]."""
        tokens = self.tokens(inputs, places)
        more = self.action_token.expand(len(tokens), self.config.n_action_pred_token - 1, -1)
        features = self.policy(torch.cat([tokens, more], 1))
        n = tokens.shape[1]
        return torch.cat([features[:, 2:n:3], features[:, n:]], 1)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the codes in the first phase, and of their prediction afterwards.

        Padded actions count: they repeat the last one.
        """
        stretches = batch[ACTION][:, self.select_target_actions_indices].flatten(0, 1)
        if not self.codes.discretized:
            return self.codes.loss(stretches)
        places = draws.get(CROP) if self.training else None
        answers = self.answers(batch, places).flatten(0, 1)
        return self.action_head.loss(answers, draws[CODES].flatten(0, 1), stretches)

    def remarks_on_training(self, steps: int) -> tuple[str, ...]:
        """Say so where the second phase, which learns to act, never begins."""
        first = self.config.n_vqvae_training_steps
        if self.codes.discretized or steps > first:
            return ()
        return (
            f"all {steps:,} steps learn codes of actions, and none to act: that begins after "
            f"--policy.n_vqvae_training_steps={first}",
        )

    @property
    def unadaptable(self) -> str | None:
        """Codes are no weights of a layer."""
        return None if self.codes.discretized else "its codes are still learnt"

    def updated(self, step: int) -> None:
        """Leave the codes as they are once the first phase is over."""
        if step >= self.config.n_vqvae_training_steps:
            self.codes.freeze()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Give the codes a rate and a decay of their own; LeRobot's groups, in its order."""
        config, head = self.config, self.action_head
        decayed, plain = self.policy.by_decay()
        decayed += [*self.rgb_encoder.parameters(), *self.state_projector.parameters()]
        decayed += [*self.rgb_feature_projector.parameters(), self.action_token]
        decayed += head.map_to_cbet_preds_offset.parameters()
        for predictor in head.predictors():
            decayed += predictor.parameters()
        codes = [*self.codes.encoder.parameters(), *self.codes.decoder.parameters()]
        own = {"weight_decay": config.optimizer_vqvae_weight_decay, "lr": config.optimizer_vqvae_lr}
        return [
            {"params": decayed},
            {"params": codes, **own},
            {"params": plain, "weight_decay": 0.0},
        ]

    def hot_parts(self) -> list[nn.Module]:
        """Compile what sees and what thinks."""
        return [self.rgb_encoder.backbone, self.policy]


class Head(nn.Module):
    """From a feature [N, D] to two codes, and from these to a stretch of actions."""

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
        """Return what predicts codes."""
        if self.config.sequentially_select:
            return [self.map_to_cbet_preds_primary_bin, self.map_to_cbet_preds_secondary_bin]
        return [self.map_to_cbet_preds_bin]

    def choose(self, x: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, 2, C] and the codes [N, 2] that are drawn by them and ``uniform``."""
        n, warmth = self.config.vqvae_n_embed, self.config.bet_softmax_temperature
        noise = gumbel(uniform)  # [N, 2, C]
        if not self.config.sequentially_select:
            logits = self.map_to_cbet_preds_bin(x).unflatten(1, (N_LAYERS, n))
            return logits, (logits / warmth + noise).argmax(-1)
        first = self.map_to_cbet_preds_primary_bin(x)
        primary = (first / warmth + noise[:, 0]).argmax(-1)
        told = torch.cat([x, F.one_hot(primary, n).to(x.dtype)], 1)
        second = self.map_to_cbet_preds_secondary_bin(told)
        secondary = (second / warmth + noise[:, 1]).argmax(-1)
        return torch.stack([first, second], 1), torch.stack([primary, secondary], 1)

    def decode(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stretches [N, W, A] of codes [N, 2], with and without their offsets."""
        n = self.config.vqvae_n_embed
        offsets = self.map_to_cbet_preds_offset(x).unflatten(1, (N_LAYERS, n, -1))
        chosen = offsets.take_along_dim(codes[..., None, None], 2).squeeze(2).sum(1)
        plain = self.vqvae_model.decode(codes)
        return plain + chosen.unflatten(1, self.vqvae_model.stretch), plain

    def loss(self, x: Tensor, uniform: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return how badly codes and stretches [N, W, A] are predicted, and by what."""
        config = self.config
        wanted = self.vqvae_model.encode(actions)
        logits, codes = self.choose(x, uniform)
        predicted, plain = self.decode(x, codes)
        of_offsets = F.l1_loss(predicted, actions)
        first, second = (_focal(logits[:, i], wanted[:, i]) for i in range(N_LAYERS))
        of_codes = (
            config.primary_code_loss_weight * first + config.secondary_code_loss_weight * second
        )
        with torch.no_grad():
            errors, right = (actions - predicted).abs(), (wanted == codes).float().mean(0)
            parts = {
                "classification_loss": of_codes.detach(),
                "offset_loss": of_offsets.detach(),
                "equal_primary_code_rate": right[0],
                "equal_secondary_code_rate": right[1],
                "vq_action_error": (actions - plain).abs().mean(),
                "offset_action_error": errors.mean(),
                "action_error_max": errors.max(),
                "action_mse_error": (errors**2).mean(),
            }
        return of_codes + config.offset_loss_weight * of_offsets, parts


def _focal(logits: Tensor, wanted: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1).take_along_dim(wanted[:, None], 1)
    return -((1 - log_p.exp()) ** _GAMMA * log_p).mean()
