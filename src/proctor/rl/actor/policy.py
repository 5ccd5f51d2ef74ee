"""The policy of an actor: the Gaussian actor's network, sampled, with weights of the learner."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proctor.errors import ConnectionLost
from proctor.features import ACTION, Array, Observation
from proctor.policies.gaussian_actor.network import GaussianActorNetwork, sample
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.rl.actor.actor import ActorDecision
from proctor.rl.link.links import ActorWeights

_QUOTED = 160
"""Characters of an error that are quoted."""
_POLICY, _GRIPPER_CRITIC = "policy", "discrete_critic"
"""Names of the modules in the learner's messages."""


class ActorPolicy:
    """Samples actions of a Gaussian actor on the CPU or on a GPU."""

    def __init__(self, parts: LoadedCheckpoint, device: torch.device | None = None) -> None:
        assert isinstance(parts.network, GaussianActorNetwork)
        self._device = device or torch.device("cpu")
        self._network = parts.network.to(self._device).eval()
        self._keys = tuple(parts.config.input_features)
        self._action_size = parts.network.config.action_dim
        self._preprocess = parts.preprocessor.on(self._device)
        self._postprocess = parts.postprocessor.on(torch.device("cpu"))

    @property
    def has_value(self) -> bool:
        """Whether the policy has a gripper critic, whose value tells how well it stands."""
        return self._network.discrete_critic is not None

    def load(self, weights: ActorWeights) -> None:
        """Use the learner's weights."""
        modules = {_POLICY: self._network.actor, _GRIPPER_CRITIC: self._network.discrete_critic}
        for name, module in modules.items():
            if module is None:
                continue
            try:
                state = {key: torch.tensor(value) for key, value in weights.modules[name].items()}
                module.load_state_dict(state)
            except (KeyError, RuntimeError) as error:
                raise ConnectionLost(
                    f"the learner's weights do not fit this actor's policy: {_one_line(error)}",
                    code="rl.weights-mismatch",
                ) from None

    def decide(self, observation: Observation, generator: torch.Generator | None) -> ActorDecision:
        """Return an action with noise of ``generator``; None: the Gaussian's mode."""
        with torch.inference_mode():
            inputs = self._preprocess(self._inputs(observation))
            features = self._network.encoder_actor.image_features(inputs)
            moments = self._network.actor(inputs, features)
            if generator is None:
                action = moments.mean.tanh()
            else:
                noise = torch.randn(1, self._action_size, generator=generator)
                action = sample(moments, noise.to(self._device))[0]
            action = self._postprocess({ACTION: action.cpu()})[ACTION]
            values = self._gripper_values(inputs, features)
        if values is None:
            return ActorDecision(_array(action[0]), None)
        command = values.argmax().reshape(1).to(action.dtype)
        return ActorDecision(_array(torch.cat([action[0], command])), float(values.max()))

    def _gripper_values(
        self, inputs: dict[str, Tensor], features: dict[str, Tensor]
    ) -> Tensor | None:
        critic = self._network.discrete_critic
        if critic is None:
            return None
        shared = features if self._network.config.shared_encoder else None
        values: Tensor = critic(inputs, shared)[0].cpu()
        return values

    def _inputs(self, observation: Observation) -> dict[str, Tensor]:
        """Return a batch of one observation; images become float from 0 to 1."""
        tensors = {}
        for key in self._keys:
            value = torch.from_numpy(np.ascontiguousarray(observation[key])).to(self._device)
            value = value.float() / 255 if value.dtype == torch.uint8 else value
            tensors[key] = value[None]
        return tensors


def _array(action: Tensor) -> Array:
    return np.asarray(action.numpy(), np.float32)


def _one_line(error: Exception) -> str:
    """Return the first line that names a tensor: torch lists every one that does not fit."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    head, *lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = lines[0] if lines else head
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return (text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...") + more
