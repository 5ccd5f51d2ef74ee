"""The policy of an actor: samples, the gripper's command, and the learner's weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from proctor.errors import ConnectionLost
from proctor.features import ACTION, IMAGES, STATE, Feature, FeatureKind
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.gaussian_actor.network import GaussianActorNetwork
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.rl.actor.policy import ActorPolicy
from proctor.rl.link.links import ActorWeights

_FRONT = IMAGES + "front"
_STATS = {
    STATE: {"min": torch.zeros(4), "max": torch.ones(4)},
    _FRONT: {"mean": torch.zeros(3, 1, 1), "std": torch.ones(3, 1, 1)},
    ACTION: {"min": torch.tensor([-2.0, 0.0]), "max": torch.tensor([2.0, 10.0])},
}


def _parts(seed: int = 0, *, image: bool = False, gripper: bool = True) -> LoadedCheckpoint:
    torch.manual_seed(seed)
    inputs = {STATE: Feature(FeatureKind.STATE, (4,), "float32")}
    if image:
        inputs[_FRONT] = Feature(FeatureKind.VISUAL, (40, 40, 3), "uint8")
    config = replace(
        GaussianActorConfig(),
        num_discrete_actions=3 if gripper else None,
        latent_dim=8,
        image_encoder_hidden_dim=2,
        actor_network_kwargs={"hidden_dims": [8]},
        discrete_critic_network_kwargs={"hidden_dims": [8]},
    )
    config = config.with_features(inputs, 2 + gripper)
    stats = {key: _STATS[key] for key in (*inputs, ACTION)}
    return LoadedCheckpoint(
        config, GaussianActorNetwork(config), "", *default_pipelines(config, stats, stats)
    )


def _observation() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        STATE: rng.random(4).astype(np.float32),
        _FRONT: rng.integers(0, 256, (3, 40, 40)).astype(np.uint8),
    }


def _weights(parts: LoadedCheckpoint) -> ActorWeights:
    network = parts.network
    assert isinstance(network, GaussianActorNetwork)
    modules = {"policy": network.actor, "discrete_critic": network.discrete_critic}
    return ActorWeights(
        {
            name: {key: value.numpy() for key, value in module.state_dict().items()}
            for name, module in modules.items()
            if module is not None
        }
    )


@pytest.mark.parametrize("image", [False, True])
def test_actions_are_in_the_environments_units(image: bool) -> None:
    policy = ActorPolicy(_parts(image=image))
    noise = torch.Generator().manual_seed(1)
    actions = np.stack([policy.decide(_observation(), noise).action for _ in range(50)])
    assert actions.dtype == np.float32
    assert (np.abs(actions[:, 0]) <= 2).all()
    assert ((actions[:, 1] >= 0) & (actions[:, 1] <= 10)).all()
    assert set(actions[:, 2]) <= {0.0, 1.0, 2.0}
    assert actions[:, 0].std() > 0


def test_equal_noise_gives_equal_actions_and_none_gives_the_mode() -> None:
    policy = ActorPolicy(_parts())
    first, again = (
        policy.decide(_observation(), torch.Generator().manual_seed(4)).action for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    mode = policy.decide(_observation(), None)
    np.testing.assert_array_equal(mode.action, policy.decide(_observation(), None).action)
    assert not np.array_equal(mode.action[:2], first[:2])
    assert mode.value is not None


def test_without_a_gripper_critic_there_is_no_value() -> None:
    policy = ActorPolicy(_parts(gripper=False))
    decision = policy.decide(_observation(), None)
    assert decision.action.shape == (2,)
    assert decision.value is None
    assert not policy.has_value


def test_the_learners_weights_are_used() -> None:
    policy, other = ActorPolicy(_parts(0)), _parts(1)
    before = policy.decide(_observation(), None)
    policy.load(_weights(other))
    after, expected = policy.decide(_observation(), None), ActorPolicy(other)
    np.testing.assert_array_equal(after.action, expected.decide(_observation(), None).action)
    assert not np.array_equal(before.action, after.action)
    assert before.value != after.value


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(ConnectionLost) as refused:
        ActorPolicy(_parts()).load(_weights(_parts(gripper=False)))
    assert refused.value.code == "rl.weights-mismatch"


def test_the_refusal_of_weights_is_one_line() -> None:
    wrong = _weights(_parts())
    shorter = {key: value[:1] for key, value in wrong.modules["policy"].items()}
    with pytest.raises(ConnectionLost) as refused:
        ActorPolicy(_parts()).load(ActorWeights({**wrong.modules, "policy": shorter}))
    assert refused.value.code == "rl.weights-mismatch"
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
