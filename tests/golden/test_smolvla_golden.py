"""SmolVLA against outputs that LeRobot computed, and the layout of its published weights."""

from __future__ import annotations

import json

import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, load_case

from proctor.policies.blocks.encoder_sizes import SiglipSizes
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.smolvla.config import SmolVlaConfig
from proctor.policies.smolvla.network import SmolVla
from proctor.policies.smolvla.vlm import TextSizes, VlmSizes

pytestmark = pytest.mark.vla

FORWARD = 1e-5
SAMPLED = 1e-4


@pytest.fixture(scope="module")
def case():
    raw, inputs, expected = load_case("smolvla_tiny")
    network = SmolVla(decode_config(raw, SmolVlaConfig, "golden"), tiny_sizes())
    fill_weights(network, "model.")
    return network.eval(), inputs, expected


def tiny_sizes() -> VlmSizes:
    notes = json.loads((GOLDEN / "smolvla_tiny" / "notes.json").read_text())["vlm_config"]
    text, vision = notes["text"], notes["vision"]
    return VlmSizes(
        TextSizes(
            hidden_size=text["hidden"],
            intermediate_size=text["inter"],
            num_hidden_layers=text["layers"],
            num_attention_heads=text["heads"],
            num_key_value_heads=text["kv"],
            head_dim=text["head_dim"],
            vocab_size=text["vocab"],
            rms_norm_eps=text["rms_norm_eps"],
        ),
        SiglipSizes(
            hidden_size=vision["hidden"],
            intermediate_size=vision["inter"],
            num_hidden_layers=vision["layers"],
            num_attention_heads=vision["heads"],
            image_size=vision["image"],
            patch_size=vision["patch"],
        ),
        notes["scale_factor"],
    )


def test_images_are_prepared_as_lerobot_does(case):
    network, inputs, expected = case
    found = network.preprocess_images(inputs["observation.images.camera1"])
    assert_close("prepared_image0", found, expected["prepared_image0"], FORWARD)
    model = network.vlm_with_expert.vlm.model
    tokens = model.connector(model.vision_model(found))
    assert_close("image_tokens0", tokens, expected["image_tokens0"], FORWARD)


def test_what_the_language_model_is_told_matches(case):
    network, inputs, expected = case
    tokens, valid = network.embed_prefix(inputs)
    assert torch.equal(valid, expected["prefix_pad"])
    scale = tokens.shape[-1] ** 0.5  # of images and words, and so of their rounding
    assert_close("prefix_embs", tokens / scale, expected["prefix_embs"] / scale, FORWARD)


def test_what_the_expert_is_told_matches(case):
    network, inputs, expected = case
    found = network.embed_suffix(inputs["noise"], network.embed_time(inputs["time"])[:, None])
    assert_close("suffix_embs", found, expected["suffix_embs"], FORWARD)


def test_errors_and_loss_match(case):
    network, inputs, expected = case
    found = network.errors(inputs, inputs["action"], inputs["noise"], inputs["time"])
    # What is squared is the network's own; other kernels move the largest, 4, by 1.4e-5.
    scale = expected["losses"].max().sqrt()
    assert_close("errors", found.sqrt() / scale, expected["losses"].sqrt() / scale, FORWARD)
    drawn = ((inputs["time"] - 0.001) / 0.999) ** 1.5
    loss, _ = network.loss(inputs, {"noise": inputs["noise"], "time": drawn})
    assert_close("loss", loss, expected["loss"], FORWARD)


def test_sampled_chunks_match(case):
    network, inputs, expected = case
    with torch.inference_mode():
        found = network.chunk(inputs, {"noise": inputs["noise"]})
    assert_close("chunk", found, expected["chunk"], SAMPLED)


def test_every_tensor_of_the_published_layout_has_a_place_and_none_is_left():
    lines = (GOLDEN / "keys_smolvla.txt").read_text().splitlines()
    published = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    raw, _, _ = load_case("smolvla_tiny")
    full = {"max_state_dim": 32, "max_action_dim": 32, "num_vlm_layers": 16}
    with torch.device("meta"), SkipWeightInit():
        network = SmolVla(decode_config({**raw, **full}, SmolVlaConfig, "golden"))
    ours = {f"model.{key}": str(list(t.shape)) for key, t in network.state_dict().items()}
    assert list(ours.items()) == list(published.items())
    _, _, total, _, learning = lines[0].replace("trainable(default)", "trainable").split(" ")
    assert sum(p.numel() for p in network.parameters()) == int(total)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == int(learning)
