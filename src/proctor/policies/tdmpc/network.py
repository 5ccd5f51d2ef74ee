"""TD-MPC (Hansen et al., 2022) in its offline variant FOWM (Feng et al., 2023).

    observation ─▶ z ─▶ planning (MPPI): each iteration samples plans from a Gaussian, rolls them
                        out in the world model and estimates their value; the best plans (elites)
                        set the next iteration's mean and standard deviation
                        ─▶ one elite of the last iteration is executed
                        ─▶ the mean, shifted by a step, starts the next query of the episode

Planning is a function of the observation, the last mean (in the episode's state) and noise, which
the caller passes in. All values are normalised; B is the batch, H the horizon, A the action size, L
the latent size, P the plans per iteration, E the Q-functions of the ensemble.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, REWARD, STATE
from proctor.policies.blocks.rgb_encoder import crop
from proctor.policies.runtime.network import Network, NoiseSpec, gumbel
from proctor.policies.tdmpc.config import TdMpcConfig
from proctor.policies.tdmpc.world import WorldModel

MEAN = "mean of the last plan"
OWN, TRIED, LAST, JUDGES, CHOICE = "own", "tried", "last", "judges", "choice"
SHIFT = "shift"
N_JUDGES = 2
"""Q-functions sampled from the ensemble; the lower of their values is used."""
_MOST_WEIGHT = 100.0
_NAMES = {
    "consistency": "consistency_loss",
    "reward": "reward_loss",
    "q": "Q_value_loss",
    "v": "V_value_loss",
    "pi": "pi_loss",
}
"""Loss terms, by LeRobot's names in the log."""


class TdMpc(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = False

    def __init__(self, config: TdMpcConfig) -> None:
        super().__init__()
        self.config = config
        self.model = WorldModel(config)
        self.model_target = deepcopy(self.model).requires_grad_(False)
        plan = (config.horizon, config.action_dim)
        rounds, own, judged = config.cem_iterations, config.n_pi_samples, config.q_ensemble_size > 2
        if config.use_mpc:
            self.episode_inputs = {MEAN: plan}
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
        """Return the actions [B, replan_steps, A]; with MPC, followed by the plan's mean."""
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
        """Save the means into the states, for the next queries."""
        n = self.config.replan_steps
        if self.config.use_mpc:
            for state, chunk in zip(states, chunks, strict=True):
                state[MEAN] = chunk[n:].numpy().copy()
        return chunks[:, :n]

    def plan(self, z: Tensor, last: Tensor, draws: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Plan from ``z`` [B, L], starting at the plan ``last`` [B, H, A] shifted by a step.

        Returns:
            An elite of the last iteration, and that iteration's mean, [B, H, A] each.
        """
        config = self.config
        own = self.policy_plans(z, draws[OWN])
        mean = torch.cat([last[:, 1:], torch.zeros_like(last[:, :1])], 1)
        std = torch.full_like(mean, config.max_std)
        noise = draws[TRIED].to(z.dtype).unbind(1)
        for iteration in range(config.cem_iterations):
            tried = (mean[:, :, None] + std[:, :, None] * noise[iteration]).clamp(-1, 1)
            plans = torch.cat([tried, own], 2)  # [B, H, P, A]
            values = self.estimate_value(z, plans, draws, iteration).nan_to_num(0)
            best = values.topk(config.n_elites, 1)
            elites = plans.take_along_dim(best.indices[:, None, :, None], 2)
            logits = config.elite_weighting_temperature * (best.values - best.values[:, :1])
            share = logits.softmax(1)[:, None, :, None]
            average = (share * elites).sum(2)
            spread = (share * (elites - average[:, :, None]) ** 2).sum(2).sqrt()
            std = spread.clamp(config.min_std, config.max_std)
            momentum = config.gaussian_mean_momentum
            mean = momentum * mean + (1 - momentum) * average
        chosen = (logits + gumbel(draws[CHOICE])).argmax(1)
        return elites.take_along_dim(chosen[:, None, None, None], 2).squeeze(2), mean

    def policy_plans(self, z: Tensor, noise: Tensor) -> Tensor:
        """Return plans of the learned policy with a little noise, [B, H, n_pi_samples, A]."""
        z = z[:, None].expand(-1, self.config.n_pi_samples, -1)
        plans = []
        for of_step in noise.to(z.dtype).unbind(1):
            plans.append(self.model.act(z) + self.config.min_std * of_step)
            z = self.model.next_latent(z, plans[-1])
        return torch.stack(plans, 1)

    def estimate_value(
        self, z: Tensor, plans: Tensor, draws: dict[str, Tensor], iteration: int
    ) -> Tensor:
        """Return the estimated values [B, P] of plans [B, H, P, A] that start at z [B, L].

        A value is the discounted rewards and the last state's Q-value, minus a penalty for the
        disagreement of the ensemble.
        """
        config = self.config
        z = z[:, None].expand(-1, plans.shape[2], -1)
        total, discount = torch.zeros_like(plans[:, 0, :, 0]), 1.0
        for actions in plans.unbind(1):
            penalty = self._disagreement(self.model.values(z, actions))
            z, reward = self.model.step(z, actions)
            total = total + discount * (reward - penalty)
            discount *= config.discount
        noise = draws[LAST][:, iteration].to(z.dtype)
        values = self.model.values(z, self.model.act(z) + config.min_std * noise)
        uniform = draws[JUDGES][:, iteration] if JUDGES in draws else None
        return total + discount * (_lower_of_two(values, uniform) - self._disagreement(values))

    def _disagreement(self, values: Tensor) -> Tensor:
        weight = self.config.uncertainty_regularizer_coeff
        return weight * values.std(0) if weight > 0 else torch.zeros_like(values[0])

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of consistency, reward, value and policy losses."""
        config = self.config
        inputs = self._augmented(batch, draws)
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
            target_z = self.model_target.encode(later)
            target_q = rewards + config.discount * self.model.value(self.model.encode(later))
            target_values = self.model_target.values(before.detach(), actions)  # [E, B, H]
            uniform = draws[JUDGES].unbind(1) if JUDGES in draws else (None, None)
            value_target, q_target = (_lower_of_two(target_values, one) for one in uniform)
        values, value = self.model.values(before, actions), self.model.value(before)
        with torch.no_grad():
            advantage = (q_target - value) * config.advantage_scaling
        policy_error = F.mse_loss(self.model.act(before.detach()), actions, reduction="none").sum(
            -1
        )
        value_error = value_target - value
        expectile = torch.where(
            value_error > 0, config.expectile_weight, 1 - config.expectile_weight
        )
        errors = {
            "consistency": F.mse_loss(z[:, 1:], target_z, reduction="none").mean(-1),
            "reward": (torch.stack(predicted, 1) - rewards) ** 2,
            "q": ((values - target_q) ** 2).sum(0),
            "v": expectile * value_error**2,
            "pi": advantage.exp().clamp(max=_MOST_WEIGHT) * policy_error,
        }
        parts = {"Q": values.detach().mean(), "V": value.detach().mean()}
        return self._weighted_sum(errors, batch, parts)

    def _weighted_sum(
        self, errors: dict[str, Tensor], batch: dict[str, Tensor], parts: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the unpadded errors [B, H], with weights that decay over the horizon.

        The policy loss is a mean over the steps, the others are sums, as in FOWM's code.
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
        logged = {_NAMES[name]: value.detach() for name, value in sums.items()}
        logged[_NAMES["pi"]] = logged[_NAMES["pi"]] / config.horizon
        return total, parts | logged | {"sum_loss": total.detach() * config.horizon}

    def _augmented(self, batch: dict[str, Tensor], draws: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the observations [B, H + 1, ...]; in training with random image shifts."""
        inputs = {key: batch[key] for key in self.config.input_features}
        if SHIFT not in draws or not self.training:
            return inputs
        camera = self.config.cameras[0]
        images = inputs[camera].flatten(0, 1)
        side = images.shape[-1]
        room = round(self.config.max_random_shift_ratio * side)
        padded = F.pad(images, [room] * 4, "replicate")
        moved = crop(padded, [side, side], draws[SHIFT].flatten(0, 1))
        return inputs | {camera: moved.reshape(inputs[camera].shape)}

    @property
    def adapter_conflict(self) -> str | None:
        """Why adapters cannot be trained: every update changes the target model."""
        return "its target model is a moving average of all weights"

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """Update the target model's moving average."""
        momentum = self.config.target_model_momentum
        pairs = zip(self.model_target.parameters(), self.model.parameters(), strict=True)
        for target, online in pairs:
            target.mul_(momentum).add_(online, alpha=1 - momentum)

    def compiled_modules(self) -> list[nn.Module]:
        """Compile the modules that planning runs at every step."""
        return self.model.compiled_modules()


def _lower_of_two(values: Tensor, uniform: Tensor | None) -> Tensor:
    """Return the lower of two Q-values of [E, B, N], sampled per row by ``uniform`` [B, 2].

    The same Q-function may be sampled twice. Without ``uniform``: the minimum of all.
    """
    if uniform is None:
        return values.min(0).values
    drawn = (uniform * len(values)).long()  # [B, 2]
    return values.take_along_dim(drawn.T[..., None], 0).min(0).values
