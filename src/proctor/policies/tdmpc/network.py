"""TD-MPC (Hansen et al., 2022; learning from recordings as FOWM, Feng et al., 2023).

    observation ─▶ z ─▶ search (MPPI): plans are drawn around a mean, played in the model of the
                        world and valued; the best of them make the next round's mean and spread
                        ─▶ one of the best of the last round is played
                        ─▶ the mean, a step on, is where the next query of the episode begins

A search is a function of observation, last mean and draws, which come from outside: its state is
the episode's. Everything works on normalised values; B is the batch, H the horizon, A the action
size, L the length of latent states, P the plans of a round, E the estimators of actions' values.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, REWARD, STATE
from proctor.policies.blocks.rgb_encoder import cropped
from proctor.policies.runtime.network import Network, NoiseSpec, gumbel
from proctor.policies.tdmpc.config import TdMpcConfig
from proctor.policies.tdmpc.world import World

MEAN = "mean of the last plan"
OWN, TRIED, LAST, JUDGES, CHOICE = "own", "tried", "last", "judges", "choice"
SHIFT = "shift"
N_JUDGES = 2
"""Estimators, drawn anew each time, of which the lower counts."""
_MOST_WEIGHT = 100.0
_NAMES = {
    "consistency": "consistency_loss",
    "reward": "reward_loss",
    "q": "Q_value_loss",
    "v": "V_value_loss",
    "pi": "pi_loss",
}
"""Parts of the loss as LeRobot's log has them."""


class TdMpc(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = False

    def __init__(self, config: TdMpcConfig) -> None:
        super().__init__()
        self.config = config
        self.model = World(config)
        self.model_target = deepcopy(self.model).requires_grad_(False)
        plan = (config.horizon, config.action_dim)
        rounds, own, judged = config.cem_iterations, config.n_pi_samples, config.q_ensemble_size > 2
        if config.use_mpc:
            self.recalled = {MEAN: plan}
            tried = (rounds, config.horizon, config.n_gaussian_samples, config.action_dim)
            self.draws = {
                OWN: (NoiseSpec.NORMAL, (config.horizon, own, config.action_dim)),
                TRIED: (NoiseSpec.NORMAL, tried),
                LAST: (NoiseSpec.NORMAL, (rounds, config.n_plans, config.action_dim)),
                CHOICE: (NoiseSpec.UNIFORM, (config.n_elites,)),
            }
            if judged:
                self.draws[JUDGES] = (NoiseSpec.UNIFORM, (rounds, N_JUDGES))
        if judged:
            self.loss_draws = {JUDGES: (NoiseSpec.UNIFORM, (2, N_JUDGES))}
        if config.cameras and config.max_random_shift_ratio > 0:
            self.loss_draws = {
                **self.loss_draws,
                SHIFT: (NoiseSpec.UNIFORM, (config.horizon + 1, 2)),
            }

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, replan_steps, A]; where they were searched for, then the mean."""
        config = self.config
        z = self.model.encode(inputs)
        if config.use_mpc:
            plan, mean = self.plan(z, inputs[MEAN].to(z.dtype), draws)
        else:
            plan, mean = self.model.act(z)[:, None], z.new_empty(len(z), 0, config.action_dim)
        if config.n_action_repeats > 1:
            plan = plan[:, :1].expand(-1, config.n_action_repeats, -1)
        played = plan[:, : config.replan_steps].clamp(-1, 1)
        return torch.cat([played, mean], 1)

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Keep the means for the next queries."""
        n = self.config.replan_steps
        if self.config.use_mpc:
            for state, chunk in zip(states, chunks, strict=True):
                state[MEAN] = chunk[n:].numpy().copy()
        return chunks[:, :n]

    def plan(self, z: Tensor, last: Tensor, draws: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Search from ``z`` [B, L], beginning around the plan ``last`` [B, H, A], a step on.

        Returns:
            A plan of the last round's best, and that round's mean, [B, H, A] each.
        """
        config = self.config
        own = self.own_plans(z, draws[OWN])
        mean = torch.cat([last[:, 1:], torch.zeros_like(last[:, :1])], 1)
        std = torch.full_like(mean, config.max_std)
        noise = draws[TRIED].to(z.dtype).unbind(1)
        for number in range(config.cem_iterations):
            tried = (mean[:, :, None] + std[:, :, None] * noise[number]).clamp(-1, 1)
            plans = torch.cat([tried, own], 2)  # [B, H, P, A]
            worth = self.worth(z, plans, draws, number).nan_to_num(0)
            best = worth.topk(config.n_elites, 1)
            elites = plans.take_along_dim(best.indices[:, None, :, None], 2)
            logits = config.elite_weighting_temperature * (best.values - best.values[:, :1])
            share = logits.softmax(1)[:, None, :, None]
            found = (share * elites).sum(2)
            spread = (share * (elites - found[:, :, None]) ** 2).sum(2).sqrt()
            std = spread.clamp(config.min_std, config.max_std)
            kept = config.gaussian_mean_momentum
            mean = kept * mean + (1 - kept) * found
        chosen = (logits + gumbel(draws[CHOICE])).argmax(1)
        return elites.take_along_dim(chosen[:, None, None, None], 2).squeeze(2), mean

    def own_plans(self, z: Tensor, noise: Tensor) -> Tensor:
        """Return what the policy alone would play, a little noisy, [B, H, n_pi_samples, A]."""
        z = z[:, None].expand(-1, self.config.n_pi_samples, -1)
        plans = []
        for of_step in noise.to(z.dtype).unbind(1):
            plans.append(self.model.act(z) + self.config.min_std * of_step)
            z = self.model.after(z, plans[-1])
        return torch.stack(plans, 1)

    def worth(self, z: Tensor, plans: Tensor, draws: dict[str, Tensor], number: int) -> Tensor:
        """Return what plans [B, H, P, A] from z [B, L] on are worth, [B, P].

        Rewards and the last state's value, less for what the estimators do not agree on.
        """
        config = self.config
        z = z[:, None].expand(-1, plans.shape[2], -1)
        total, discount = torch.zeros_like(plans[:, 0, :, 0]), 1.0
        for actions in plans.unbind(1):
            doubt = self._doubt(self.model.values(z, actions))
            z, reward = self.model.step(z, actions)
            total = total + discount * (reward - doubt)
            discount *= config.discount
        noise = draws[LAST][:, number].to(z.dtype)
        values = self.model.values(z, self.model.act(z) + config.min_std * noise)
        uniform = draws[JUDGES][:, number] if JUDGES in draws else None
        return total + discount * (_lowest(values, uniform) - self._doubt(values))

    def _doubt(self, values: Tensor) -> Tensor:
        weight = self.config.uncertainty_regularizer_coeff
        return weight * values.std(0) if weight > 0 else torch.zeros_like(values[0])

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted losses of latent states, rewards, values and the policy's own."""
        config = self.config
        inputs = self._moved(batch, draws)
        now, later = ({k: v[:, steps] for k, v in inputs.items()} for steps in (0, slice(1, None)))
        actions, rewards = batch[ACTION], batch[REWARD]
        latents, predicted = [self.model.encode(now)], []
        for action in actions.unbind(1):
            after, reward = self.model.step(latents[-1], action)
            latents.append(after)
            predicted.append(reward)
        z = torch.stack(latents, 1)  # [B, H + 1, L]
        before = z[:, :-1]
        with torch.no_grad():
            seen = self.model_target.encode(later)
            worth = rewards + config.discount * self.model.value(self.model.encode(later))
            judged = self.model_target.values(before.detach(), actions)  # [E, B, H]
            uniform = draws[JUDGES].unbind(1) if JUDGES in draws else (None, None)
            hoped, judgement = (_lowest(judged, one) for one in uniform)
        values, value = self.model.values(before, actions), self.model.value(before)
        with torch.no_grad():
            better = (judgement - value) * config.advantage_scaling
        own = F.mse_loss(self.model.act(before.detach()), actions, reduction="none").sum(-1)
        short = hoped - value
        hope = torch.where(short > 0, config.expectile_weight, 1 - config.expectile_weight)
        errors = {
            "consistency": F.mse_loss(z[:, 1:], seen, reduction="none").mean(-1),
            "reward": (torch.stack(predicted, 1) - rewards) ** 2,
            "q": ((values - worth) ** 2).sum(0),
            "v": hope * short**2,
            "pi": better.exp().clamp(max=_MOST_WEIGHT) * own,
        }
        parts = {"Q": values.detach().mean(), "V": value.detach().mean()}
        return self._weighed(errors, batch, parts)

    def _weighed(
        self, errors: dict[str, Tensor], batch: dict[str, Tensor], parts: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add up errors [B, H] where there was something to learn from, later ones weighing less.

        The policy's own is a mean over the steps where the others are sums, as in FOWM's code.
        """
        config = self.config
        known = ~batch[f"{STATE}_is_pad"]
        played = known[:, :1] & ~batch[f"{ACTION}_is_pad"]
        rewarded = ~batch[f"{REWARD}_is_pad"]
        counted = {
            "consistency": played & known[:, 1:],
            "reward": played & rewarded,
            "q": played & rewarded & known[:, 1:],
            "v": played,
            "pi": played,
        }
        weights = {
            "consistency": config.consistency_coeff,
            "reward": config.reward_coeff,
            "q": config.value_coeff,
            "v": config.value_coeff,
            "pi": config.pi_coeff / config.horizon,
        }
        steps = torch.arange(config.horizon, device=known.device)
        decay = torch.pow(config.temporal_decay_coeff, steps)
        sums = {name: (decay * e * counted[name]).sum(1).mean() for name, e in errors.items()}
        total = torch.stack([weights[name] * value for name, value in sums.items()]).sum()
        told = {_NAMES[name]: value.detach() for name, value in sums.items()}
        told[_NAMES["pi"]] = told[_NAMES["pi"]] / config.horizon
        return total, parts | told | {"sum_loss": total.detach() * config.horizon}

    def _moved(self, batch: dict[str, Tensor], draws: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the observations [B, H + 1, ...]; in training, images moved by some pixels."""
        inputs = {key: batch[key] for key in self.config.input_features}
        if SHIFT not in draws or not self.training:
            return inputs
        camera = self.config.cameras[0]
        images = inputs[camera].flatten(0, 1)
        side = images.shape[-1]
        room = round(self.config.max_random_shift_ratio * side)
        padded = F.pad(images, [room] * 4, "replicate")
        moved = cropped(padded, [side, side], draws[SHIFT].flatten(0, 1))
        return inputs | {camera: moved.reshape(inputs[camera].shape)}

    @property
    def unadaptable(self) -> str | None:
        """Every update changes the slow copy."""
        return "a slow copy of all weights follows what is learnt"

    @torch.no_grad()
    def updated(self, step: int) -> None:
        """Let the slow copy follow."""
        kept = self.config.target_model_momentum
        pairs = zip(self.model_target.parameters(), self.model.parameters(), strict=True)
        for slow, fast in pairs:
            slow.mul_(kept).add_(fast, alpha=1 - kept)

    def hot_parts(self) -> list[nn.Module]:
        """Compile what the search runs at every step."""
        return self.model.hot_parts()


def _lowest(values: Tensor, uniform: Tensor | None) -> Tensor:
    """Return the lower of two of the values [E, B, N], drawn for each row by ``uniform`` [B, 2].

    One estimator may be drawn twice; without draws all of them count.
    """
    if uniform is None:
        return values.min(0).values
    drawn = (uniform * len(values)).long()  # [B, 2]
    return values.take_along_dim(drawn.T[..., None], 0).min(0).values
