"""Gaussian actors: checkpoints of LeRobot's learner read and written, and what they play."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_policies import (
    OFFERED,
    batch_of,
    episode,
    fresh_queries,
    make_policy,
    small_gaussian_actor,
)
from tests.refusals import refuses

from proctor.errors import SpecMismatch, UsageError
from proctor.features import ActionSpec, Feature, FeatureKind
from proctor.plugins import find_policy
from proctor.policies.blocks.encoder_sizes import ResNet10Sizes
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.gaussian_actor.network import GaussianActorNetwork
from proctor.policies.gaussian_actor.processors import make_pipelines
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy, override, read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint, write_pipeline
from proctor.policies.lerobot.config.config import encode_config

RUN = Path(__file__).parents[2] / "golden" / "data" / "rl_run" / "000006" / "pretrained_model"
"""The policy of a real run of LeRobot's learner and actor."""
GRIPPER = {
    "num_discrete_actions": 3,
    "output_features": {"action": Feature(FeatureKind.ACTION, (2,), "float32")},
}


WORLD = {"observation.environment_state": Feature(FeatureKind.ENV, (3,), "float32")}
LOW = {"observation.image": Feature(FeatureKind.VISUAL, (38, 64, 3), "uint8")}


def held(file: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    with safe_open(file, "pt") as opened:
        return dict(opened.metadata() or {}), {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118


def test_every_shared_tensor_of_lerobots_run_is_restored():
    stored = load_file(RUN / "model.safetensors")
    network = read_checkpoint(RUN).network
    found = network.state_dict()
    assert len(stored) < len(found)
    for key, value in stored.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0)
    for alias, kept in held(RUN / "model.safetensors")[0].items():
        torch.testing.assert_close(found[alias], stored[kept], rtol=0, atol=0)


def test_the_encoder_of_a_loaded_policy_is_one_object():
    network = read_checkpoint(RUN).network
    assert isinstance(network, GaussianActorNetwork)
    before = network.discrete_critic.encoder.state_encoder[0].weight
    before.data += 1
    assert network.actor.encoder.state_encoder[0].weight is before


def test_what_is_written_is_what_lerobot_wrote(tmp_path):
    write_checkpoint(read_checkpoint(RUN), tmp_path / "again")
    (names, tensors), (wanted_names, wanted) = (
        held(folder / "model.safetensors") for folder in (tmp_path / "again", RUN)
    )
    names.pop("format")
    assert names == wanted_names
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[key], wanted[key]) for key in wanted)
    for file in ("config.json", "policy_preprocessor.json", "policy_postprocessor.json"):
        again, first = (json.loads((f / file).read_text()) for f in (tmp_path / "again", RUN))
        assert again == first, file


def test_new_processors_have_the_statistics_of_the_config(tmp_path):
    before, after = make_pipelines(read_checkpoint(RUN).config)
    for pipeline in (before, after):
        write_pipeline(pipeline, tmp_path)
        name = f"{pipeline.name}.json"
        assert json.loads((tmp_path / name).read_text()) == json.loads((RUN / name).read_text())
    file = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    found, wanted = load_file(tmp_path / file), load_file(RUN / file)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_statistics_of_another_size_are_refused():
    with refuses(UsageError, "stats.shape-mismatch"):
        make_pipelines(small_gaussian_actor())


@pytest.mark.parametrize(
    "changed", [{"shared_encoder": False}, {"shared_encoder": False} | GRIPPER, GRIPPER]
)
def test_all_variants_play_the_same_after_a_round_trip(tmp_path, changed):
    policy = make_policy(small_gaussian_actor(**changed))
    write_checkpoint(policy.parts, tmp_path / "it")
    again = load_policy(str(tmp_path / "it"), None, {"device": "cpu"}, OFFERED)
    played = [
        p.act(batch_of(p, fresh_queries(p, [episode(0), episode(1)]))) for p in (policy, again)
    ]
    np.testing.assert_array_equal(*played)


def test_a_missing_encoder_is_named(tmp_path):
    shutil.copytree(RUN, tmp_path / "cut")
    tensors = load_file(RUN / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if "state_encoder" not in k}
    save_file(kept, tmp_path / "cut" / "model.safetensors")
    with refuses(UsageError, "checkpoint.missing-tensor"):
        read_checkpoint(tmp_path / "cut")


def test_the_mode_is_played_unless_samples_are_asked_for():
    still, drawn = (
        make_policy(small_gaussian_actor(sample_actions=sampled)) for sampled in (False, True)
    )
    for policy in (still, drawn):  # noise is a function of the episode
        first, second = (
            policy.act(batch_of(policy, fresh_queries(policy, [episode(0)]))) for _ in range(2)
        )
        np.testing.assert_array_equal(first, second)
    alike = [policy.act(same_view(policy)) for policy in (still, drawn)]
    assert (alike[0][0] == alike[0][1]).all()
    assert (alike[1][0] != alike[1][1]).all()


def same_view(policy):
    """Return a batch of two episodes that see the same."""
    batch = batch_of(policy, fresh_queries(policy, [episode(0), episode(1)]))
    shown = {key: np.stack([rows[0], rows[0]]) for key, rows in batch.observations.items()}
    return replace(batch, observations=shown)


@pytest.mark.parametrize("sampled", [False, True])
def test_an_episode_plays_the_same_in_batches_of_any_size(sampled):
    policy = make_policy(small_gaussian_actor(sample_actions=sampled, **GRIPPER))
    specs = [episode(index) for index in range(5)]
    together = policy.act(batch_of(policy, fresh_queries(policy, specs)))
    alone = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in specs]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_a_flag_asks_for_samples():
    config = override(read_checkpoint(RUN).config, {"sample_actions": "true"})
    assert config.sample_actions


def test_the_gripper_command_is_not_unnormalised():
    policy = make_policy(small_gaussian_actor(**GRIPPER))
    critic = policy.network.discrete_critic
    critic.output_layer.bias.copy_(torch.tensor([0.0, 0.0, 1000.0]))
    played = policy.act(batch_of(policy, fresh_queries(policy, [episode(0)])))
    assert played.shape == (1, 1, 3)
    assert played[0, 0, 2] == 2


def test_an_environment_without_the_gripper_command_is_refused(tmp_path):
    write_checkpoint(make_policy(small_gaussian_actor(**GRIPPER)).parts, tmp_path / "it")
    narrow = replace(OFFERED, action=ActionSpec(2, -1.0, 1.0))
    with refuses(SpecMismatch, "policy.action-size-mismatch"):
        load_policy(str(tmp_path / "it"), None, {"device": "cpu"}, narrow)


def test_a_new_policy_with_a_gripper_has_one_number_less_in_its_gaussian():
    plugin = find_policy("gaussian_actor")
    small = small_gaussian_actor(input_features={}, output_features={}, num_discrete_actions=3)
    policy = plugin.make(small, OFFERED)
    assert policy.parts.config.action_dim == OFFERED.action.size - 1


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"actor_network_kwargs": {"hidden_dims": []}}, "policy.out-of-range"),
        ({"discrete_critic_network_kwargs": {"final_activation": "Evil"}}, "policy.unknown-choice"),
        ({"policy_kwargs": {"std_min": 0.0}}, "policy.out-of-range"),
        ({"num_discrete_actions": 0}, "policy.out-of-range"),
        ({"n_obs_steps": 2}, "policy.one-observation"),
        ({"input_features": WORLD}, "policy.missing-input"),
        ({"input_features": LOW}, "policy.image-size-mismatch"),
    ],
)  # fmt: skip
def test_a_config_that_describes_no_network_is_refused(changed, code):
    with refuses(UsageError, code):
        small_gaussian_actor(**changed).validate()


@pytest.mark.parametrize("given", [{"hidden": [8]}, {"hidden_dims": ["wide"]}])
def test_unknown_entries_of_a_map_are_refused(given):
    with refuses(
        UsageError, "policy.unknown-choice" if "hidden" in given else "policy.invalid-value"
    ):
        small_gaussian_actor(actor_network_kwargs=given)


LEROBOT = Path(__file__).parents[1] / "config" / "data" / "lerobot_eval_flags.json"


def test_a_new_config_has_lerobots_fields_and_values():
    wanted = json.loads(LEROBOT.read_text())["policy"]["gaussian_actor"]
    written = json.loads(encode_config(GaussianActorConfig(), "0.6"))
    unlike = {key: written.get(key) for key in wanted if written.get(key) != wanted[key]}
    assert unlike == {"push_to_hub": False}  # nothing is uploaded unasked
    assert written.keys() == {"type", *wanted}


def test_cloning_lowers_the_loss():
    torch.manual_seed(0)
    config = small_gaussian_actor()
    network = GaussianActorNetwork(config)
    batch = {
        "observation.state": torch.randn(8, 4),
        "observation.image": torch.rand(8, 3, 64, 64),
        "action": torch.rand(8, 1, 3) * 1.6 - 0.8,
    }
    optimizer = torch.optim.Adam(network.parameter_groups(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss, parts = network.loss(batch, {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(parts["nll_loss"]))
    assert losses[-1] < losses[0] - 1


def write_encoder(folder: Path, sizes: ResNet10Sizes) -> Path:
    folder.mkdir()
    told = {
        "model_type": "resnet10",
        "embedding_size": sizes.embedding_size,
        "hidden_sizes": sizes.hidden_sizes,
    }
    (folder / "config.json").write_text(json.dumps(told))
    return folder


def test_published_weights_of_the_image_encoder_come_from_a_file(tmp_path):
    folder = write_encoder(tmp_path / "r10", ResNet10Sizes(8, [8, 12, 16, 24]))
    config = small_gaussian_actor(vision_encoder_name=str(folder))
    network = GaussianActorNetwork(config)
    layers = network.encoder_critic.image_encoder.image_enc_layers
    wanted = {key: torch.randn_like(value) for key, value in layers.state_dict().items()}
    save_file(wanted, folder / "model.safetensors")
    save_file(wanted, tmp_path / "elsewhere.safetensors")
    for file in (None, str(folder), str(tmp_path / "elsewhere.safetensors")):
        other = GaussianActorNetwork(replace(config, vision_encoder_file=file))
        other.load_pretrained()
        found = other.actor.encoder.image_encoder.image_enc_layers.state_dict()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    save_file({"x": torch.zeros(1)}, tmp_path / "wrong.safetensors")
    with refuses(UsageError, "checkpoint.missing-tensor"):
        GaussianActorNetwork(
            replace(config, vision_encoder_file=str(tmp_path / "wrong.safetensors"))
        ).load_pretrained()


def test_a_missing_image_encoder_says_which_file_goes_where(tmp_path, monkeypatch):
    config = small_gaussian_actor(vision_encoder_name="lerobot/resnet10")
    with torch.device("meta"):
        network = GaussianActorNetwork(config)
    network.config.vision_encoder_file = str(tmp_path / "nowhere")
    with refuses(UsageError, "policy.missing-encoder") as refused:
        network.load_pretrained()
    assert str(tmp_path / "nowhere") in str(refused.value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    network.config.vision_encoder_file = None
    with refuses(UsageError, "policy.missing-encoder") as refused:
        network.load_pretrained()
    for word in ("model.safetensors", "lerobot/resnet10", "--policy.vision_encoder_file"):
        assert word in str(refused.value)


def test_another_image_encoder_is_refused(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "resnet", "hidden_sizes": [1]}))
    with refuses(UsageError, "policy.unknown-choice"):
        GaussianActorNetwork(small_gaussian_actor(vision_encoder_name=str(folder)))


def test_a_frozen_image_encoder_has_no_gradients():
    for frozen in (True, False):
        config = small_gaussian_actor(freeze_vision_encoder=frozen)
        network = GaussianActorNetwork(config)
        seen = {
            key: torch.rand(2, *shape)
            for key, shape in (("observation.state", (4,)), ("observation.image", (3, 64, 64)))
        }
        network.encoder_critic(seen).sum().backward()
        first = network.encoder_critic.image_encoder.image_enc_layers[0].weight
        assert (first.grad is None) == frozen


def test_dropout_is_the_given_mask():
    network = GaussianActorNetwork(small_gaussian_actor())
    encoder = network.encoder_critic
    seen = {"observation.state": torch.rand(2, 4), "observation.image": torch.rand(2, 3, 64, 64)}
    dropped = {"observation.image": torch.zeros(2, encoder.embedding_dim)}
    without = encoder(seen, keep=dropped)
    projection = encoder.post_encoders["observation_image"]
    torch.testing.assert_close(without[:, :6], projection(torch.zeros(2, encoder.embedding_dim)))
