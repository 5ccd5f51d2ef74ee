"""SmolVLA: invalid configs, padding of prompts, and rows that do not depend on their batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_policies import INPUTS, batch_of, episode, fresh_queries, offering
from tests.refusals import refuses

from proctor.errors import UsageError
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Feature, FeatureKind
from proctor.fingerprint import ConfigUse
from proctor.policies.lerobot.checkpoint.checkpoint import build_network
from proctor.policies.lerobot.checkpoint.weights import load_weights
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.policies.smolvla.config import PLUGIN, SmolVlaConfig
from proctor.policies.smolvla.vlm import SMOLVLM2, read_vlm_sizes

VLM = Path(__file__).parents[2] / "golden" / "data" / "smolvla_run" / "vlm"
ACTION = {"action": Feature(FeatureKind.ACTION, (3,), "float32")}


def small(**changes: Any) -> SmolVlaConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "chunk_size": 6,
        "n_action_steps": 3,
        "max_state_dim": 6,
        "max_action_dim": 4,
        "num_steps": 3,
        "num_vlm_layers": 2,
        "resize_imgs_with_padding": [32, 32],
        "tokenizer_max_length": 16,
        "vlm_model_name": str(VLM),
    }
    return SmolVlaConfig(**{**fields, **changes})


def network(**changes: Any):
    torch.manual_seed(0)
    return build_network(PLUGIN, small(**changes)).eval()


def inputs(rows: int, words: int, length: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.full((rows, length), 7)
    tokens[:, :words] = torch.randint(0, 250, (rows, words), generator=drawn)
    return {
        "observation.image": torch.rand(rows, 3, 64, 64, generator=drawn),
        STATE: torch.randn(rows, 4, generator=drawn),
        LANGUAGE_TOKENS: tokens,
        LANGUAGE_MASK: (torch.arange(length) < words).expand(rows, -1),
    }


NOISE = {"noise": torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2))}


@torch.inference_mode()
def test_padding_of_words_changes_nothing():
    made = network()
    short, long = (made.chunk(inputs(2, 5, length), NOISE) for length in (5, 16))
    torch.testing.assert_close(long, short, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_words_state_and_pictures_are_all_heeded():
    made, told = network(), inputs(2, 5, 8)
    usual = made.chunk(told, NOISE)
    for key in (LANGUAGE_TOKENS, STATE, "observation.image"):
        other = made.chunk({**told, key: told[key].flip(0) if key != STATE else -told[key]}, NOISE)
        assert (other - usual).abs().max() > 1e-4, key


@torch.inference_mode()
def test_an_action_does_not_see_those_after_it():
    made, told = network(), inputs(2, 5, 8)
    later = NOISE["noise"].clone()
    later[:, 4:] += 1.0
    usual, other = made.chunk(told, NOISE), made.chunk(told, {"noise": later})
    torch.testing.assert_close(other[:, :4], usual[:, :4], rtol=1e-5, atol=1e-5)
    assert (other[:, 4:] - usual[:, 4:]).abs().max() > 0.1


def test_the_steps_of_denoising_do_not_look_or_listen_again(monkeypatch):
    made = network(num_steps=4)
    counts = {"vision": 0, "text": 0, "expert": 0}
    model = made.vlm_with_expert.vlm.model

    def counting(name):
        counts[name] += 1

    model.vision_model.register_forward_hook(lambda *_: counting("vision"))
    model.text_model.register_forward_hook(lambda *_: counting("text"))
    made.vlm_with_expert.lm_expert.register_forward_hook(lambda *_: counting("expert"))
    with torch.inference_mode():
        made.chunk(inputs(2, 5, 8), NOISE)
    assert counts == {"vision": 1, "text": 1, "expert": 4}


@torch.inference_mode()
def test_half_as_many_bits_give_nearly_the_same():
    made, told = network(), inputs(2, 5, 8)
    usual = made.chunk(told, NOISE)
    made.to(torch.bfloat16)
    halved = {k: v.bfloat16() if v.is_floating_point() else v for k, v in told.items()}
    with torch.backends.mkldnn.flags(enabled=False):  # a CPU without bfloat16 would turn it off
        assert (made.chunk(halved, NOISE) - usual).abs().max() < 0.1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"n_obs_steps": 2}, "policy.one-observation"),
        ({"n_action_steps": 7}, "policy.out-of-range"),
        ({"max_state_dim": 3}, "policy.state-size-mismatch"),
        ({"resize_imgs_with_padding": [32]}, "policy.invalid-shape"),
        ({"attention_mode": "none"}, "policy.unknown-choice"),
        ({"expert_width_multiplier": -1.0}, "policy.out-of-range"),
        ({"min_period": 9.0}, "policy.out-of-range"),
        ({"adapt_to_pi_aloha": True}, "policy.wrong-robot"),
        ({"add_image_special_tokens": True}, "policy.unsupported-field"),
        ({"num_steps": 0}, "policy.out-of-range"),
    ],
    ids=str,
)
def test_invalid_configs_are_refused_in_one_line(changes, code):
    with refuses(UsageError, code) as refused:
        small(**changes).validate()
    assert next(iter(changes)) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_without_a_camera_is_refused():
    with refuses(UsageError, "policy.missing-input"):
        small(input_features={STATE: INPUTS[STATE]}).validate()


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"num_expert_layers": 1}, "policy.cannot-build", "num_expert_layers"),
        ({"vlm_model_name": "no such"}, "checkpoint.not-found", "no such"),
        ({"resize_imgs_with_padding": [17, 17]}, "policy.cannot-build", "17x17"),
    ],
    ids=str,
)
def test_networks_that_cannot_be_built_are_refused(changes, code, named):
    with refuses(UsageError, code) as refused:
        build_network(PLUGIN, small(**changes))
    assert named in str(refused.value)


def test_the_published_models_sizes_are_known_without_a_file():
    sizes = read_vlm_sizes(SMOLVLM2)
    assert (sizes.text_config.hidden_size, sizes.text_config.head) == (960, 64)
    assert sizes.granularity == 64


@pytest.mark.parametrize(
    ("path", "value", "code", "named"),
    [
        (["model_type"], "llava", "policy.wrong-backbone", "'llava'"),
        (["text_config", "hidden_size"], None, "policy.wrong-backbone", "hidden_size"),
        (["text_config", "hidden_size"], 10**9, "policy.wrong-backbone", "hidden_size"),
        (["text_config", "num_key_value_heads"], 2, "checkpoint.invalid-config", "heads"),
        (["vision_config", "num_attention_heads"], 5, "checkpoint.invalid-config", "vision_config"),
        (["vision_config", "hidden_act"], "relu", "checkpoint.invalid-config", "'relu'"),
        (["vision_config"], "none", "policy.wrong-backbone", "vision_config"),
    ],
    ids=str,
)
def test_another_vision_language_model_is_refused(tmp_path, path, value, code, named):
    stated = json.loads((VLM / "config.json").read_text())
    place = stated
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with refuses(UsageError, code) as refused:
        read_vlm_sizes(str(tmp_path))
    assert f"vlm_model_name={tmp_path}" in str(refused.value)
    assert named in str(refused.value)


def test_a_file_without_the_matrix_that_writes_words_is_whole_and_half_floats_are_widened():
    stored = {key: value.half() for key, value in network().state_dict().items()}
    stored.pop("vlm_with_expert.vlm.lm_head.weight")
    made = network()
    assert (
        load_weights(made, {f"model.{key}": value for key, value in stored.items()}, "model.", "x")
        == []
    )
    made.cast(None)
    assert {p.dtype for p in made.parameters()} == {torch.float32}
    made.cast(torch.bfloat16)
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}


def test_what_is_seen_may_have_any_size_and_a_robots_numbers_only_where_it_learns():
    small_world = offering("observation.image", FeatureKind.VISUAL, (24, 40, 3))
    small_world = offering(STATE, FeatureKind.STATE, (5,), small_world)
    wrist = Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8")
    empty = {"observation.images.empty_camera_0": wrist}
    config = small(input_features={**INPUTS, "observation.images.wrist": wrist, **empty})
    learning = config.for_interface(small_world, {}, ConfigUse.TRAINING)
    shapes = {key: feature.shape for key, feature in learning.input_features.items()}
    assert shapes == {STATE: (5,), "observation.image": (24, 40, 3)}
    acting = config.for_interface(small_world, {}, ConfigUse.EVALUATION)
    assert acting.input_features[STATE].shape == (4,)
    assert acting.input_features["observation.image"].shape == (24, 40, 3)
    assert "observation.images.wrist" in acting.input_features, "an eye that is missed is refused"
    assert "observation.images.empty_camera_0" not in acting.input_features


def test_a_new_one_begins_with_the_language_models_own_weights(tmp_path):
    (tmp_path / "config.json").write_text((VLM / "config.json").read_text())
    named = {"vlm_model_name": str(tmp_path), "load_vlm_weights": True}
    published = network(**named, num_vlm_layers=4).vlm_with_expert.vlm.state_dict()
    published = {key: torch.randn_like(value) for key, value in published.items()}
    save_file(published, tmp_path / "model.safetensors")
    made = network(**named)
    made.load_pretrained()
    for key, value in made.vlm_with_expert.vlm.state_dict().items():
        assert torch.equal(value, published[key]), key
    lacking = {k: v for k, v in published.items() if "connector" not in k}
    save_file(lacking, tmp_path / "model.safetensors")
    with refuses(UsageError, "checkpoint.missing-tensor") as refused:
        network(**named).load_pretrained()
    assert "connector.modality_projection" in str(refused.value)


@pytest.fixture(scope="module")
def policy() -> ChunkPolicy:
    pytest.importorskip("tokenizers", reason="pip install 'proctor[vla]'")
    config = small()
    torch.manual_seed(0)
    made = build_network(PLUGIN, config)
    stats = {STATE: {"mean": torch.zeros(4), "std": torch.ones(4)}}
    stats["action"] = {"mean": torch.zeros(3), "std": torch.ones(3)}
    pipelines = default_pipelines(config, stats, stats)
    return ChunkPolicy(LoadedCheckpoint(config, made, PLUGIN.prefix, *pipelines), "cpu")


@pytest.mark.vla
def test_batches_of_1_3_and_8_with_words_of_all_lengths_give_the_same_bits(policy):
    specs = [episode(index, task) for task in range(3) for index in range(8)]
    words = ["do it", "push the red block over", "open"]
    specs = [replace(s, task=replace(s.task, instruction=words[s.task.task_id])) for s in specs][
        ::-1
    ]
    alone = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in specs]
    for size in (3, 8):
        together = [
            policy.act(batch_of(policy, fresh_queries(policy, specs[i : i + size])))
            for i in range(0, len(specs), size)
        ]
        np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))


@pytest.mark.vla
def test_it_asks_for_an_instruction_and_hears_it(policy):
    assert policy.spec.language_conditioned
    one, other = (
        replace(s, task=replace(s.task, instruction=words))
        for s, words in ((episode(0), "open it"), (episode(0), "close it"))
    )
    chunks = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in (one, other)]
    assert np.abs(chunks[0] - chunks[1]).max() > 1e-5
