"""Soft actor-critic (Haarnoja et al., 2018) in LeRobot's semantics: the algorithm of HIL-SERL.

One update takes ``utd_ratio`` batches. Each batch gives one step of the critics and one of the
gripper critic; the last one also gives the steps of the actor and of the temperature. What looks
odd is LeRobot's and has a golden test:

- a shared encoder is stepped by two optimisers, the critics' and the gripper critic's;
- the actor's gradient norm for clipping includes the shared encoder's gradients: those of this pass
  and those that the critic steps left, though the actor's optimiser does not step the encoder;
- the gripper penalty is left out in the last batch of an update; ``fix_penalty`` includes it.

LeRobot averages the targets' copy of a shared encoder with the encoder itself, the same tensor.
That is the identity up to rounding, and left out here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from proctor.config.sections.online import SacSettings
from proctor.policies.gaussian_actor.network import (
    GaussianActorNetwork,
    Moments,
    ObservationEncoder,
    sample,
)
from proctor.rl.algorithms.base import Algorithm, TensorTree
from proctor.rl.algorithms.critics import CriticEnsemble
from proctor.rl.algorithms.flat_parameters import FlatAdam, FlatParameters
from proctor.rl.algorithms.sac_draws import DrawSizes, SacDraws, draw
from proctor.rl.algorithms.sac_graph import GraphedUpdate
from proctor.rl.algorithms.sac_networks import (
    actor_mlp,
    actor_parameters,
    critic_mlp,
    gripper_mlp,
    gripper_parameters,
    memory_layouts,
    trainable,
)
from proctor.rl.algorithms.stacked_mlp import Tape
from proctor.rl.transitions import TransitionBatch

PENALTY = "discrete_penalty"
IS_DEMONSTRATION = "is_demonstration"
"""1 for a row of the offline buffer, else 0: where behaviour cloning applies."""
MARGIN = 0.1
"""How much the gripper critic should prefer the demonstrated command (DQfD's large margin)."""

_ACTOR, _CRITICS, _ENCODER, _GRIPPER = "actor", "critics", "encoder", "gripper"
_Masks = Iterator[dict[str, Tensor] | None]
_Features = tuple[Mapping[str, Tensor] | None, Mapping[str, Tensor] | None]


class Sac(Algorithm):
    """SAC on a Gaussian actor, with an optional critic for a discrete gripper."""

    def __init__(
        self,
        network: GaussianActorNetwork,
        settings: SacSettings,
        generator: torch.Generator,
        *,
        fix_penalty: bool = False,
    ) -> None:
        """Take over the network's parameters: they move into a flat buffer.

        ``generator`` is on the network's device; every random number of an update comes from it.
        """
        self.network = network
        self.settings = settings
        self.generator = generator
        self._fix_penalty = fix_penalty
        self._step = 0
        encoder = network.encoder_critic
        actions = network.config.action_dim
        device = next(network.parameters()).device
        self.critics = CriticEnsemble(
            settings.num_critics, encoder.output_dim + actions, settings.critic_network_kwargs
        ).to(device)
        self.critic_targets = copy.deepcopy(self.critics)
        self.gripper = network.discrete_critic
        self.gripper_target = copy.deepcopy(self.gripper)
        if self.gripper_target is not None:
            self.gripper_target.encoder = encoder
        self.log_alpha = torch.full((1,), math.log(settings.temperature_init), device=device)
        usual = -(actions + (self.gripper is not None)) / 2
        self.target_entropy = usual if settings.target_entropy is None else settings.target_entropy
        shared = network.config.shared_encoder
        self._actor_encoder = [] if shared else trainable(network.encoder_actor)
        self._make_optimizers()
        self._make_networks()
        if encoder.cameras and encoder.frozen and device.type == "cpu":
            # Convolutions of a CPU are twice as fast in this layout.
            for kernel in (p for p in encoder.image_encoder.parameters() if p.dim() == 4):
                kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)
        graphs = settings.cuda_graphs and device.type == "cuda"
        self._graphed = GraphedUpdate(device) if graphs else None

    def _make_optimizers(self) -> None:
        network, settings = self.network, self.settings
        sections: dict[str, list[nn.Parameter]] = {
            _ACTOR: [*self._actor_encoder, *actor_parameters(network.actor)],
            _CRITICS: list(self.critics.parameters()),
            _ENCODER: trainable(network.encoder_critic),
        }
        rates = {"actor": settings.actor_lr, "critic": settings.critic_lr}
        if self.gripper is not None:
            sections[_GRIPPER] = gripper_parameters(self.gripper)
            rates["discrete_critic"] = settings.critic_lr
        layouts = memory_layouts(network.actor) | memory_layouts(self.critics)
        if self.gripper is not None:
            layouts |= memory_layouts(self.gripper)
        self.flat = flat = FlatParameters(sections, layouts)
        spans = {"actor": flat.span(_ACTOR), "critic": flat.span(_CRITICS, _ENCODER)}
        if self.gripper is not None:
            spans["discrete_critic"] = flat.span(_ENCODER, _GRIPPER)
        self.spans = spans
        self.optimizers = {
            name: FlatAdam(flat.values[span], flat.gradients[span], rates[name])
            for name, span in spans.items()
        }
        self._alpha_gradient = torch.zeros_like(self.log_alpha)
        self.optimizers["temperature"] = FlatAdam(
            self.log_alpha, self._alpha_gradient, settings.temperature_lr
        )

    def _make_networks(self) -> None:
        """Make the networks with explicit gradients, and the targets' flat buffers."""
        self._actor_mlp = actor_mlp(self.network.actor, self.flat)
        self._critic_mlp = critic_mlp(self.critics, self.flat)
        target = FlatParameters(
            {_CRITICS: list(self.critic_targets.parameters())}, memory_layouts(self.critic_targets)
        )
        self._critic_target_mlp = critic_mlp(self.critic_targets, target)
        self._targets = [(_CRITICS, target)]
        if self.gripper is not None and self.gripper_target is not None:
            self._gripper_mlp = gripper_mlp(self.gripper, self.flat)
            target = FlatParameters(
                {_GRIPPER: gripper_parameters(self.gripper_target)},
                memory_layouts(self.gripper_target),
            )
            self._gripper_target_mlp = gripper_mlp(self.gripper_target, target)
            self._targets.append((_GRIPPER, target))

    @property
    def step(self) -> int:
        """Number of updates made so far."""
        return self._step

    def restore_step(self, step: int) -> None:
        """Continue counting updates at ``step``, that of a checkpoint."""
        self._step = step

    @property
    def device(self) -> torch.device:
        """Device of all parameters."""
        return self.flat.values.device

    def update(self, batches: Iterator[TransitionBatch]) -> dict[str, float]:
        """Make one update with ``utd_ratio`` batches and return its metrics."""
        taken = list(islice(batches, self.settings.utd_ratio))
        return self.update_with(taken, draw(self.draw_sizes(taken), self.generator))

    def update_with(self, batches: list[TransitionBatch], draws: SacDraws) -> dict[str, float]:
        """Make one update with given random numbers."""
        if self._graphed is None:
            metrics = self._update(batches, draws)
        else:
            metrics = self._graphed(self._update, batches, draws)
        self._step += 1
        return dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))

    def draw_sizes(self, batches: list[TransitionBatch]) -> DrawSizes:
        """Return the shapes of the next update's random numbers."""
        settings, encoder = self.settings, self.network.encoder_critic
        frequency = settings.policy_update_freq
        actor_steps = frequency if self._step % frequency == 0 else 0
        per_batch = 3 if self.gripper is None else 6
        return DrawSizes(
            critic_steps=settings.utd_ratio,
            actor_steps=actor_steps,
            batch=len(batches[0].action),
            actions=self.network.config.action_dim,
            critics=settings.num_critics,
            subset=settings.num_subsample_critics,
            encoder_passes=per_batch * settings.utd_ratio + 3 * actor_steps,
            cameras=encoder.cameras,
            embedding=encoder.embedding_dim if encoder.cameras else 0,
        )

    def _update(self, batches: list[TransitionBatch], draws: SacDraws) -> dict[str, Tensor]:
        masks = draws.masks(self.network.encoder_critic.cameras)
        metrics: dict[str, Tensor] = {}
        for i, batch in enumerate(batches):
            is_last = i == len(batches) - 1
            features = self._image_features(self.network.encoder_critic, batch)
            subset = None if draws.subsets is None else draws.subsets[i]
            metrics |= self._critic_step(batch, features, draws.target_noise[i], subset, masks)
            if self.gripper is not None:
                with_penalty = self._fix_penalty or not is_last
                metrics |= self._gripper_step(batch, features, masks, with_penalty=with_penalty)
            if is_last:
                for noise in draws.actor_noise:
                    metrics |= self._actor_step(batch, features, noise, masks)
            self._update_targets()
        return metrics

    # ── encoders ──────────────────────────────────────────────────────────────────────────────

    def _image_features(self, encoder: ObservationEncoder, batch: TransitionBatch) -> _Features:
        """Return the frozen image features of observations and next observations, in one pass."""
        cameras = encoder.cameras
        if not cameras or not encoder.frozen:
            return None, None
        sides = batch.observation, batch.next_observation
        with torch.no_grad():
            images = torch.cat([side[key] for side in sides for key in cameras])
            maps = encoder.image_encoder(images).chunk(2 * len(cameras))
        now = dict(zip(cameras, maps[: len(cameras)], strict=True))
        return now, dict(zip(cameras, maps[len(cameras) :], strict=True))

    def _encode_twice(
        self,
        observation: Mapping[str, Tensor],
        features: Mapping[str, Tensor] | None,
        masks: _Masks,
    ) -> tuple[Tensor, Tensor]:
        """Return the actor's encoding and the critics', each with its own dropout mask."""
        network = self.network
        shared = network.config.shared_encoder
        if shared and not network.encoder_critic.cameras:
            encoding = network.encoder_critic(observation)
            return encoding, encoding
        own = features if shared else None
        actor = network.encoder_actor(observation, own, next(masks), detach_images=shared)
        return actor, network.encoder_critic(observation, features, next(masks))

    def _moments(self, encoding: Tensor, tape: Tape | None = None) -> tuple[Moments, Tensor]:
        """Return the actor's Gaussian, and where its variance is within its bounds."""
        mean, log_variance = self._actor_mlp.forward(encoding, tape)[0].chunk(2, dim=-1)
        free = log_variance.exp()
        variance = free.clamp(*self.network.actor.limits)
        return Moments(mean, variance), free == variance

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def _critic_step(
        self,
        batch: TransitionBatch,
        features: _Features,
        noise: Tensor,
        subset: Tensor | None,
        masks: _Masks,
    ) -> dict[str, Tensor]:
        settings = self.settings
        with torch.no_grad():
            own, encoding = self._encode_twice(batch.next_observation, features[1], masks)
            action, log_prob = sample(self._moments(own)[0], noise)
            values = self._critic_target_mlp.forward(torch.cat([encoding, action], -1))[..., 0]
            value = (values if subset is None else values.index_select(0, subset)).amin(0)
            if settings.use_backup_entropy:
                value = value - self.log_alpha.exp() * log_prob
            target = torch.addcmul(batch.reward, 1 - batch.done, value, value=settings.discount)
        encoding = self.network.encoder_critic(batch.observation, features[0], next(masks))
        with torch.no_grad():
            tape, taken = Tape(), batch.action[:, : noise.shape[-1]]
            values = self._critic_mlp.forward(torch.cat([encoding, taken], -1), tape)
            error = values - target[:, None]
            loss = error.square().mean(1).sum()
            inner = self._critic_mlp.backward(tape, error * (2 / len(target)))
        self._encoder_backward([(encoding, inner[:, : encoding.shape[-1]])])
        return {"loss_critic": loss, "critic_grad_norm": self._clip_and_step("critic")}

    def _gripper_step(
        self, batch: TransitionBatch, features: _Features, masks: _Masks, *, with_penalty: bool
    ) -> dict[str, Tensor]:
        """Make one step of double Q-learning on the gripper commands."""
        encoder = self.network.encoder_critic
        command = batch.action[:, -1:].round().long()
        with torch.no_grad():
            encoding = encoder(batch.next_observation, features[1], next(masks))
            best = self._gripper_mlp.forward(encoding)[0].argmax(-1, keepdim=True)
            if encoder.cameras:
                encoding = encoder(batch.next_observation, features[1], next(masks))
            value = self._gripper_target_mlp.forward(encoding)[0].gather(1, best)
            reward = batch.reward
            if with_penalty and PENALTY in batch.complementary_info:
                penalty = batch.complementary_info[PENALTY]
                # Demonstrations without the column come after the online rows, which have it.
                reward = reward + nn.functional.pad(penalty, (0, len(reward) - len(penalty)))
            alive = 1 - batch.done[:, None]
            target = torch.addcmul(reward[:, None], alive, value, value=self.settings.discount)
        encoding = encoder(batch.observation, features[0], next(masks))
        with torch.no_grad():
            tape = Tape()
            values = self._gripper_mlp.forward(encoding, tape)
            error = values[0].gather(1, command) - target
            metrics = {"loss_discrete_critic": error.square().mean()}
            gradient = torch.zeros_like(values[0]).scatter_(1, command, error * (2 / len(error)))
            if self.settings.bc_gripper_weight:
                metrics["loss_bc_gripper"] = self._clone_gripper(
                    batch, values[0], command, gradient
                )
            inner = self._gripper_mlp.backward(tape, gradient[None])
        self._encoder_backward([(encoding, inner)])
        return metrics | {"discrete_critic_grad_norm": self._clip_and_step("discrete_critic")}

    def _clone_gripper(
        self, batch: TransitionBatch, values: Tensor, command: Tensor, gradient: Tensor
    ) -> Tensor:
        """Add the gradient of the large margin loss on demonstrations; return the loss.

        The demonstrated command should have the largest value, by `MARGIN` (Hester et al., 2018).
        """
        weights = _demonstration_weights(batch)
        margins = torch.full_like(values, MARGIN).scatter_(1, command, 0.0)
        best, rival = (values + margins).max(-1, keepdim=True)
        weight = (weights * self.settings.bc_gripper_weight)[:, None]
        gradient.scatter_add_(1, rival, weight).scatter_add_(1, command, -weight)
        return ((best - values.gather(1, command))[:, 0] * weights).sum()

    def _actor_step(
        self, batch: TransitionBatch, features: _Features, noise: Tensor, masks: _Masks
    ) -> dict[str, Tensor]:
        """Make one step of the actor, then one of the temperature with a fresh sample."""
        own, encoding = self._encode_twice(batch.observation, features[0], masks)
        with torch.no_grad():
            tape, critic_tape = Tape(), Tape()
            moments, is_free = self._moments(own, tape)
            action, log_prob = sample(moments, noise[0])
            values = self._critic_mlp.forward(torch.cat([encoding, action], -1), critic_tape)
            value, lowest = values.min(0, keepdim=True)
            alpha = self.log_alpha.exp()
            metrics = {"loss_actor": (alpha * log_prob - value[0, :, 0]).mean()}
            rows = len(action)
            inner = self._critic_mlp.backward(
                critic_tape,
                torch.zeros_like(values).scatter_(0, lowest, -1 / rows),
                parameters=False,
            )
            width = encoding.shape[-1]
            # Through action = tanh(x), x = mean + √variance · noise; d log π / dx = 2 tanh(x).
            outer = inner[:, width:] * (1 - action.square()) + action * (2 / rows * alpha)
            spread = 0.5 * moments.variance.sqrt() * noise[0] * outer - 0.5 / rows * alpha
            if self.settings.bc_weight:
                metrics["loss_bc"] = self._clone_actor(batch, moments.mean, outer)
            gradient = torch.cat([outer, spread * is_free], -1)
            own_inner = self._actor_mlp.backward(tape, gradient[None])
        if self.network.config.shared_encoder:
            passes = [(own, own_inner), (encoding, inner[:, :width])]
            self._encoder_backward(passes, accumulate=True)
            metrics["actor_grad_norm"] = self._clip_and_step("actor", self.flat.slices[_ENCODER])
        else:
            if self._actor_encoder:
                gradients = torch.autograd.grad(own, self._actor_encoder, own_inner)
                self.flat.write(self._actor_encoder, gradients)
            metrics["actor_grad_norm"] = self._clip_and_step("actor")
        return metrics | self._temperature_step(batch, own, features, noise[1], masks)

    def _clone_actor(self, batch: TransitionBatch, mean: Tensor, gradient: Tensor) -> Tensor:
        """Add the gradient of the mean squared error on demonstrations; return that error."""
        weights = _demonstration_weights(batch)
        chosen = mean.tanh()
        error = chosen - batch.action[:, : mean.shape[-1]]
        weight = weights[:, None] * (2 * self.settings.bc_weight / mean.shape[-1])
        gradient.add_(error * (1 - chosen.square()) * weight)
        return (error.square().mean(-1) * weights).sum()

    def _encoder_backward(
        self, passes: Sequence[tuple[Tensor, Tensor]], *, accumulate: bool = False
    ) -> None:
        """Write the gradient of the critics' encoder, given those of its encodings."""
        parameters = self.flat.parameters[_ENCODER]
        encodings, gradients = zip(*passes, strict=True)
        found = torch.autograd.grad(encodings, parameters, gradients)
        self.flat.write(parameters, found, accumulate=accumulate)

    def _temperature_step(
        self,
        batch: TransitionBatch,
        encoding: Tensor,
        features: _Features,
        noise: Tensor,
        masks: _Masks,
    ) -> dict[str, Tensor]:
        network = self.network
        with torch.no_grad():
            shared = network.config.shared_encoder
            if network.encoder_actor.cameras or not shared:
                own = features[0] if shared else None
                encoding = network.encoder_actor(batch.observation, own, next(masks))
            _, log_prob = sample(self._moments(encoding)[0], noise)
            loss = -(self.log_alpha.exp() * (log_prob + self.target_entropy)).mean()
            # The derivative of exp(log_alpha) is itself: the gradient is the loss.
            norm = loss.abs()
            scale = torch.clamp(self.settings.grad_clip_norm / (norm + 1e-6), max=1.0)
            self._alpha_gradient.copy_(loss * scale)
        self.optimizers["temperature"].step()
        return {
            "loss_temperature": loss,
            "temperature_grad_norm": norm,
            "temperature": self.log_alpha.exp().squeeze(0),
        }

    def _clip_and_step(self, name: str, *also_clipped: slice) -> Tensor:
        norm = self.flat.clip(self.settings.grad_clip_norm, self.spans[name], *also_clipped)
        self.optimizers[name].step()
        return norm

    def _update_targets(self) -> None:
        weight = self.settings.critic_target_update_weight
        for section, target in self._targets:
            target.values.lerp_(self.flat.values[self.flat.slices[section]], weight)

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    def actor_state(self) -> dict[str, TensorTree]:
        """Return copies of the weights that actors need, on the CPU."""
        state = {"policy": _copies(self.network.actor.state_dict())}
        if self.gripper is not None:
            state["discrete_critic"] = _copies(self.gripper.state_dict())
        return state

    def state(self) -> TensorTree:
        """Return everything that the next update depends on, as copies on the CPU."""
        found: TensorTree = dict(self.algorithm_tensors())
        for name, tensor in self.network.named_parameters():
            found[f"network.{name}"] = tensor
        for name, optimizer in self.optimizers.items():
            for part in ("mean", "square", "count"):
                found[f"optimizer.{name}.{part}"] = getattr(optimizer, part)
        found["generator"] = self.generator.get_state()
        found["step"] = torch.tensor(self._step)
        return _copies(found)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; the next update then gives the same bits."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(state[f"network.{name}"])
            for name, tensor in self.algorithm_tensors():
                tensor.copy_(state[name])
        for name, optimizer in self.optimizers.items():
            for part in ("mean", "square", "count"):
                getattr(optimizer, part).copy_(state[f"optimizer.{name}.{part}"])
        self.generator.set_state(state["generator"].cpu())
        self._step = int(state["step"])

    def algorithm_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that are not the policy's, as views, by LeRobot's names."""
        for prefix, critics in (
            ("critic_ensemble", self.critics),
            ("critic_target", self.critic_targets),
        ):
            for name, tensor in critics.named_heads():
                yield f"{prefix}.{name}", tensor
        if self.gripper_target is not None:
            for name, tensor in self.gripper_target.named_parameters():
                if not name.startswith("encoder."):
                    yield f"discrete_critic_target.{name}", tensor.detach()
        yield "log_alpha", self.log_alpha


def _demonstration_weights(batch: TransitionBatch) -> Tensor:
    """Return the weights [B] of a mean over the rows of demonstrations; all 0 without any."""
    rows = batch.complementary_info[IS_DEMONSTRATION]
    return rows / rows.sum().clamp(min=1.0)


def _copies(tensors: Mapping[str, Tensor]) -> TensorTree:
    return {name: tensor.detach().clone().cpu().contiguous() for name, tensor in tensors.items()}
