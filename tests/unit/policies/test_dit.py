"""The multi-task diffusion transformer: what its config may say, and what a new one starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.refusals import refuses
from tests.unit.policies.small_policies import (
    ACTION,
    OFFERED,
    STATE,
    batch_of,
    episode,
    fresh_queries,
)
from tests.unit.policies.tiny_tokenizer import HALF, write_clip

from proctor.errors import UsageError
from proctor.features import Feature, FeatureKind
from proctor.policies.blocks.encoder_sizes import clip_sizes
from proctor.policies.lerobot.checkpoint.checkpoint import build_network, fresh_policy
from proctor.policies.multi_task_dit.config import PLUGIN, DitConfig
from proctor.policies.multi_task_dit.network import Dit

pytestmark = pytest.mark.vla


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip")


def small_dit(clip: Path, **changes: Any) -> DitConfig:
    fields: dict[str, Any] = {
        "horizon": 8,
        "n_action_steps": 4,
        "hidden_dim": 16,
        "num_layers": 1,
        "num_heads": 2,
        "timestep_embed_dim": 8,
        "num_train_timesteps": 6,
        "vision_encoder_name": str(clip),
        "text_encoder_name": str(clip),
        "image_crop_shape": [32, 32],
        "tokenizer_max_length": 12,
    }
    return DitConfig(**{**fields, **changes})


def for_offered(config: DitConfig) -> DitConfig:
    return replace(config, input_features=dict(OFFERED.features), output_features=ACTION)


@pytest.mark.parametrize("objective", ["diffusion", "flow_matching"])
def test_a_new_one_acts_by_what_it_sees_and_hears(clip: Path, objective: str) -> None:
    policy = fresh_policy(PLUGIN, small_dit(clip, objective=objective), OFFERED)
    specs = [episode(0), episode(1)]
    batch = batch_of(policy, fresh_queries(policy, specs))
    actions = policy.act(batch)
    assert actions.shape == (2, 4, 3)
    # At first its blocks say nothing, so what it is told changes nothing either; let them.
    for block in policy.network.noise_predictor.transformer_blocks:
        torch.nn.init.normal_(block.adaLN_modulation[1].weight, std=0.2)
    before = policy.act(batch)
    other = [replace(s, task=replace(s.task, instruction="open the red door")) for s in specs]
    after = policy.act(replace(batch, queries=fresh_queries(policy, other)))
    assert np.abs(before - after).max() > 1e-4


def test_a_new_one_starts_from_the_clip_that_is_named(clip: Path) -> None:
    config = for_offered(small_dit(clip))
    source = build_network(PLUGIN, config).observation_encoder
    halves = [source.vision_encoder.model, source.text_encoder.text_encoder]
    weights = {k: v.clone() for half in halves for k, v in half.state_dict().items()}
    weights["text_projection.weight"] = torch.zeros(2)  # of the whole CLIP, and not used
    save_file(weights, clip / "model.safetensors")
    torch.manual_seed(1)
    network = build_network(PLUGIN, config)
    network.load_pretrained()
    state = network.state_dict()
    for key, value in weights.items():
        places = {
            "vision": "observation_encoder.vision_encoder.model.",
            "text": "observation_encoder.text_encoder.text_encoder.",
        }
        name = places[key.partition("_")[0]] + key
        assert key == "text_projection.weight" or torch.equal(state[name], value)


def test_without_clips_weights_it_says_how_to_start_from_nothing(clip: Path) -> None:
    network = build_network(PLUGIN, for_offered(small_dit(clip)))
    with refuses(UsageError, "policy.missing-pretrained-weights") as refused:
        network.load_pretrained()
    assert "model.safetensors" in str(refused.value)
    assert "--policy.load_clip_weights=false" in str(refused.value)
    build_network(PLUGIN, for_offered(small_dit(clip, load_clip_weights=False))).load_pretrained()


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"objective": "regression"}, "policy.unknown-choice", "flow_matching"),
        ({"hidden_dim": 15}, "policy.not-divisible", "hidden_dim"),
        ({"hidden_dim": 6, "num_heads": 2}, "policy.not-divisible", "use_rope"),
        ({"horizon": 10**6}, "policy.out-of-range", "1-512"),
        ({"n_action_steps": 8}, "policy.out-of-range", "1-7"),
        ({"timestep_embed_dim": 7}, "policy.out-of-range", "timestep_embed_dim"),
        ({"num_inference_steps": 7}, "policy.out-of-range", "1-6"),
        ({"sigma_min": 2.0}, "policy.out-of-range", "sigma_min"),
        ({"image_crop_shape": [0, 4]}, "policy.invalid-shape", "image_crop_shape"),
    ],
)
def test_an_invalid_config_is_refused(clip: Path, changes: Any, code: str, named: str) -> None:
    with refuses(UsageError, code) as refused:
        for_offered(small_dit(clip, **changes)).validate()
    assert named in str(refused.value)


def test_cameras_that_differ_and_no_state_are_refused(clip: Path) -> None:
    config = for_offered(small_dit(clip))
    other = Feature(FeatureKind.VISUAL, (32, 32, 3), "uint8")
    more = {**config.input_features, "observation.images.b": other}
    with refuses(UsageError, "policy.camera-shapes-differ"):
        replace(config, input_features=more).validate()
    del more[STATE]
    with refuses(UsageError, "policy.missing-input") as refused:
        replace(config, input_features=more).validate()
    assert STATE in str(refused.value)


def test_a_picture_that_clip_does_not_take_is_refused(clip: Path) -> None:
    with refuses(UsageError, "policy.cannot-build") as refused:
        build_network(PLUGIN, for_offered(small_dit(clip, image_crop_shape=None)))
    assert all(word in str(refused.value) for word in ("32x32", "64x64", "image_resize_shape"))
    build_network(PLUGIN, for_offered(small_dit(clip, image_resize_shape=[32, 32])))


def test_a_crop_larger_than_the_picture_is_none_as_in_lerobot(clip: Path) -> None:
    assert for_offered(small_dit(clip, image_crop_shape=[65, 10])).crop is None


def test_times_that_cannot_be_drawn_are_refused_before_a_training(clip: Path) -> None:
    config = small_dit(clip, timestep_sampling_alpha=2.0, timestep_sampling_beta=3.0)
    with refuses(UsageError, "policy.out-of-range") as refused:
        config.training_preset()
    assert "timestep_sampling_alpha" in str(refused.value)


def test_times_follow_the_distribution_that_is_asked_for(clip: Path) -> None:
    uniform = torch.linspace(0, 1, 1001)[:-1]
    for alpha, beta in ((1.5, 1.0), (1.0, 2.5)):
        changes = {"timestep_sampling_alpha": alpha, "timestep_sampling_beta": beta}
        network = Dit(for_offered(small_dit(clip, objective="flow_matching", **changes)))
        mean = 1 - network._times(uniform).mean() / 0.999
        assert abs(mean - alpha / (alpha + beta)) < 2e-3


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"model_type": "bert"}, "checkpoint.wrong-model", "'bert'"),
        ({"vision_config": HALF | {"hidden_size": 10**9}}, "checkpoint.invalid-config", "16384"),
        ({"vision_config": HALF | {"num_attention_heads": 3}}, "checkpoint.invalid-config", "head"),
        (
            {"text_config": HALF | {"hidden_act": "__import__"}},
            "checkpoint.invalid-config",
            "__import__",
        ),
        (
            {"vision_config": HALF | {"image_size": 8, "patch_size": 16}},
            "checkpoint.invalid-config",
            "16",
        ),
    ],
)
def test_a_hostile_clip_is_one_line(tmp_path: Path, changes: Any, code: str, named: str) -> None:
    folder = write_clip(tmp_path / "clip", **changes)
    with refuses(UsageError, code) as refused:
        clip_sizes(str(folder))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
