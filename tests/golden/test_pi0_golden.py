"""pi0 and pi0.5 against outputs that LeRobot computed."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
import torch
from recipes import GOLDEN, assert_close

from proctor.features import ACTION, Feature, FeatureKind
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.pi0.config import Pi0Config, Pi05Config
from proctor.policies.pi0.network import Pi0, Pi05
from proctor.policies.pi0.paligemma import resize_with_padding
from tiny_pi import FLOWS, tiny_flow

pytestmark = pytest.mark.vla

FORWARD, SAMPLED = 5e-5, 1e-4
INPUTS = {
    "observation.images.base": Feature(FeatureKind.VISUAL, (224, 224, 3), "uint8"),
    "observation.state": Feature(FeatureKind.STATE, (8,), "float32"),
}
OUTPUTS = {ACTION: Feature(FeatureKind.ACTION, (7,), "float32")}


@pytest.fixture(scope="module", params=list(FLOWS))
def case(request):
    return tiny_flow(request.param)


def test_pictures_are_fitted_as_lerobot_fits_them(case):
    network, inputs, expected = case
    for number, camera in enumerate(network.config.cameras):
        found = resize_with_padding(inputs[camera], *network.config.side)
        assert_close(camera, found, expected[f"image_pre.{number}"], FORWARD)


@torch.no_grad()
def test_what_is_seen_and_read_matches(case):
    network, inputs, expected = case
    base = resize_with_padding(inputs[network.config.cameras[0]], *network.config.side)
    assert_close("vision", network.vlm.tower(base), expected["vision_last_hidden.0"], FORWARD)
    seen = network.vlm.encode_images(
        [inputs[key] for key in network.config.cameras], network.config.side
    )
    words = (inputs["observation.language.tokens"], inputs["observation.language.attention_mask"])
    x, there = network.vlm.embed(seen, *words)
    assert_close("prefix", x, expected["prefix_embs"], FORWARD)
    assert torch.equal(there, expected["prefix_pad_masks"])


@torch.no_grad()
def test_what_is_remembered_matches_where_there_is_something(case):
    network, inputs, expected = case
    seen = network.encode_prefix(inputs)
    there = seen.valid[:, None, :, None]
    keys, values = seen.kv_cache[0][0], seen.kv_cache[-1][1]
    assert_close("keys", keys * there, expected["sample.cache_k.0"] * there, FORWARD)
    assert_close("values", values * there, expected["sample.cache_v.last"] * there, FORWARD)


@torch.no_grad()
def test_times_become_what_lerobot_makes_of_them(case):
    network, inputs, expected = case
    time = network.embed_time(inputs["time"])
    assert_close("time", time, expected["time_emb"], 1e-6)
    if "adarms_cond" in expected:
        assert_close("condition", network.condition(time), expected["adarms_cond"], FORWARD)
    x, told = expected["x_t"], network.time_conditioning(time)
    assert_close("suffix", network.tokens(inputs, x, told), expected["suffix_embs"], FORWARD)
    where = network.attention_layout(network.encode_prefix(inputs))
    heads = network.expert.size.n_heads
    allowed = where.mask[:, 0].unflatten(1, (heads, -1))[:, 0]
    assert torch.equal(allowed, expected["sample.suffix_attention_allowed"])


@torch.no_grad()
def test_velocities_and_chunks_match(case):
    network, inputs, expected = case
    seen = network.encode_prefix(inputs)
    where = network.attention_layout(seen)
    now = network.time_conditioning(network.embed_time(torch.ones(1)))
    velocity = network.velocity(inputs, inputs["noise"], now, seen, where)
    assert_close("velocity", velocity, expected["sample.v_t.0"], FORWARD)
    whole = network.sample(inputs, seen, inputs["noise"])
    assert_close("chunk, whole", whole, expected["sample.chunk_padded"], SAMPLED)
    chunk = network.chunk(inputs, {"noise": inputs["noise"]})
    assert_close("chunk", chunk, expected["sample.chunk"], SAMPLED)


@torch.no_grad()
def test_ten_steps_match(case):
    network, inputs, expected = case
    before = network.config
    network.config = replace(before, num_inference_steps=10)
    found = network.sample(inputs, network.encode_prefix(inputs), inputs["noise"])
    network.config = before
    assert_close("chunk of ten steps", found, expected["sample.chunk_10"], SAMPLED)


def test_errors_the_loss_and_its_gradients_match(case):
    network, inputs, expected = case
    network.zero_grad()
    errors = network.errors(inputs, inputs["noise"], inputs["time"])
    n = network.config.action_dim
    assert_close("errors", errors, expected["train.losses"][..., :n], FORWARD)
    config = network.config
    drawn = (inputs["time"] - config.time_sampling_offset) / config.time_sampling_scale
    draws = {"noise": inputs["noise"], "time": drawn**config.time_sampling_beta_alpha}
    loss, _ = network.loss(inputs, draws)
    assert_close("loss", loss, expected["train.loss"], 1e-6)
    loss.backward()
    patch = network.vlm.tower.embeddings.patch_embedding.bias.grad
    assert_close("gradient there", patch, expected["train.grad.vision_patch_bias"], 1e-4)
    entry = network.action_in_proj.weight.grad
    assert_close("gradient here", entry, expected["train.grad.action_in_proj.weight"], 1e-4)
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    norm = torch.stack([each.norm() for each in gradients]).norm()
    assert_close("norm", norm, expected["train.grad_norm"], 1e-4)


def test_what_lerobot_does_not_learn_is_not_learnt_here(request):
    network, inputs, _ = tiny_flow("pi0_tiny")
    network.errors(inputs, inputs["noise"], inputs["time"]).mean().backward()
    still = {f"model.{name}" for name, p in network.named_parameters() if p.grad is None}
    notes = json.loads((GOLDEN / "pi0_tiny" / "notes.json").read_text())
    assert still == {*notes["params_without_gradient"], *notes["params_with_zero_gradient"]}


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_at_its_true_size_it_has_every_tensor_of_the_published_layout_in_its_order(kind):
    made = {"pi0": (Pi0Config, Pi0), "pi05": (Pi05Config, Pi05)}
    config_class, network_class = made[kind]
    with torch.device("meta"), SkipWeightInit():
        network = network_class(config_class(input_features=INPUTS, output_features=OUTPUTS))
    found = [f"model.{name} {list(p.shape)}" for name, p in network.state_dict().items()]
    stored = gzip.decompress((GOLDEN / f"keys_{kind}.txt.gz").read_bytes()).decode().splitlines()
    assert found == stored[1:]
    assert stored[0] == f"# params {sum(p.numel() for p in network.parameters())}"
