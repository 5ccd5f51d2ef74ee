"""X-VLA against outputs that LeRobot computed: its transformer, the whole, all ways to act."""

from __future__ import annotations

import json

import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, load_case, recipe_input

from proctor.features import ACTION, STATE
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.xvla.actions import make_action_space
from proctor.policies.xvla.config import SIZES, XVlaConfig
from proctor.policies.xvla.network import NOISE, TIME, XVla
from proctor.policies.xvla.steps import DOMAIN, AxisAngle, ImageNetNormalize
from proctor.policies.xvla.transformer import SoftPromptedTransformer, TransformerSizes

pytestmark = pytest.mark.vla

FORWARD, SAMPLED = 1e-5, 1e-4
NOTES = json.loads((GOLDEN / "xvla_tiny" / "notes.json").read_text())


def load_network(**changes):
    raw, inputs, expected = load_case("xvla_tiny")
    network = XVla(decode_config(raw | changes, XVlaConfig, "golden"))
    fill_weights(network, "model.")
    return network.eval(), ImageNetNormalize()(inputs), expected


@pytest.fixture(scope="module")
def case():
    network, inputs, expected = load_network()
    return network.requires_grad_(requires_grad=False), inputs, expected


def test_the_transformer_matches():
    _, inputs, expected = load_case("xvla_soft_transformer")
    told = json.loads((GOLDEN / "xvla_soft_transformer" / "notes.json").read_text())["ctor"]
    shape = TransformerSizes(
        width=told["hidden_size"],
        context_width=told["multi_modal_input_size"],
        depth=told["depth"],
        heads=told["num_heads"],
        mlp_ratio=4.0,
        domains=told["num_domains"],
        action=told["dim_action"],
        state=told["dim_proprio"],
        time=told["dim_time"],
        soft_prompts=told["len_soft_prompts"],
        longest=told["max_len_seq"],
        projections_by_domain=told["use_hetero_proj"],
    )
    network = SoftPromptedTransformer(shape).eval().requires_grad_(requires_grad=False)
    fill_weights(network, "model.transformer.")
    context = network.context(inputs["domain_id"], inputs["vlm_features"], inputs["aux"], 6)
    out = network(context, inputs["action"], inputs["proprio"], inputs["t"])
    assert_close("out", out, expected["out"], FORWARD)


def test_every_tensor_has_the_name_and_shape_that_lerobot_gives_it(case):
    network, _, _ = case
    ours = {f"model.{name}": list(value.shape) for name, value in network.state_dict().items()}
    tied = "model.vlm.language_model.encoder.embed_tokens.weight"
    assert ours == {name: shape for name, shape in NOTES["keys"].items() if name != tied}
    hetero, _, _ = load_network(use_hetero_proj=True)
    theirs = {f"model.{name}": list(value.shape) for name, value in hetero.state_dict().items()}
    assert NOTES["keys_hetero"].items() <= theirs.items()


def test_what_is_seen_and_read_matches(case):
    network, inputs, expected = case
    views = network.views(inputs)
    assert_close("image_pre", views, expected["image_pre"], FORWARD)
    tower, first = network.vlm.vision_tower, views[:1, 0]
    patches = tower.convs[0](first)
    assert_close("davit_conv.0", patches, expected["davit_conv.0"], FORWARD)
    spatial = tower.blocks[0][0].spatial_block(patches)
    assert_close("davit_spatial.0", spatial, expected["davit_spatial.0"], FORWARD)
    assert_close("davit_stage.0", tower.blocks[0][0](patches), expected["davit_stage.0"], FORWARD)
    assert_close("davit_out", tower(first), expected["davit_out"], FORWARD)
    seen = network.vlm.encode_images(views[:, 0])
    assert_close("image_features.0", seen, expected["image_features.0"], FORWARD)
    read, others = network.encode_observation(views, inputs["observation.language.tokens"])
    assert_close("vlm_features", read, expected["vlm_features"], FORWARD)
    assert_close("aux_visual_inputs", others, expected["aux_visual_inputs"], FORWARD)


def test_a_chunk_matches(case):
    network, inputs, expected = case
    found = network.chunk(inputs, {NOISE: inputs["noise"]})
    assert_close("chunk", found, expected["sample.chunk"], SAMPLED)
    assert_close("first action", found[:, 0], expected["sample.select_action"], SAMPLED)


def test_a_view_of_nothing_takes_the_place_of_a_camera_that_is_missing(case):
    _, inputs, expected = case
    raw, _, _ = load_case("xvla_tiny")
    cameras = raw["input_features"]
    fewer = {key: value for key, value in cameras.items() if not key.endswith("image2")}
    network, _, _ = load_network(input_features=fewer)
    found = network.chunk(inputs, {NOISE: inputs["noise"]})
    assert_close("chunk", found, expected["sample.chunk_camera2_missing"], SAMPLED)


def test_the_loss_and_its_gradient_match():
    network, inputs, expected = load_network()
    loss, parts = network.loss(inputs, {NOISE: inputs["noise"], TIME: inputs["u"].repeat(2)})
    assert_close("loss", loss.detach(), expected["train.loss"], FORWARD)
    found = torch.stack(list(parts.values())).detach()
    assert_close("parts", found, expected["train.loss_parts"], FORWARD)
    loss.backward()
    grads = torch.stack([p.grad.norm() for p in network.parameters()])
    assert_close("gradient", grads.norm(), expected["train.grad_norm"], 1e-4)


def test_projections_by_domain_and_actions_of_any_length_match():
    network, inputs, expected = load_network(use_hetero_proj=True)
    found = network.chunk(inputs, {NOISE: inputs["noise"]}).detach()
    assert_close("hetero", found, expected["hetero.chunk"], SAMPLED)
    action = {ACTION: {"type": "ACTION", "shape": [7]}}
    network, inputs, expected = load_network(action_mode="auto", output_features=action)
    found = network.chunk(inputs, {NOISE: inputs["noise"]}).detach()
    assert_close("auto", found, expected["auto7.chunk"], SAMPLED)
    inputs = inputs | {ACTION: inputs[ACTION][..., :7]}
    loss, _ = network.loss(inputs, {NOISE: inputs["noise"], TIME: inputs["u"].repeat(2)})
    assert_close("auto loss", loss.detach(), expected["auto7.loss"], FORWARD)


@pytest.mark.parametrize("mode", SIZES)
def test_every_way_to_act_matches(mode):
    size, played = SIZES[mode]
    raw, _, expected = load_case("xvla_tiny")
    action = {ACTION: {"type": "ACTION", "shape": [played]}}
    config = decode_config(
        raw | {"action_mode": mode, "output_features": action}, XVlaConfig, "golden"
    )
    space = make_action_space(config)
    given = recipe_input(f"space:{mode}:pred", [2, 4, size], -1, 1)
    wanted = recipe_input(f"space:{mode}:target", [2, 4, size], 0, 1)
    state = recipe_input(f"space:{mode}:proprio", [2, 20], -1, 1)
    for name, value in space.losses(given, wanted).items():
        told = torch.tensor(NOTES["action_space_losses"][mode][name])
        assert_close(name, value, told, FORWARD)
    assert_close("post", space.to_robot_actions(given), expected[f"space.{mode}.post"], FORWARD)
    assert_close(
        "action", space.mask_grippers(given), expected[f"space.{mode}.pre_action"], FORWARD
    )
    assert_close(
        "state", space.mask_grippers(state), expected[f"space.{mode}.pre_proprio"], FORWARD
    )


def test_poses_become_axes_and_angles_as_in_lerobot(case):
    _, inputs, expected = case
    found = AxisAngle()({ACTION: inputs["post.action20"][None]})[ACTION][0]
    assert_close("post", found, expected["post.action7"], FORWARD)


def test_the_state_and_the_domain_reach_the_actions(case):
    network, inputs, expected = case
    draws = {NOISE: inputs["noise"]}
    for changed in ({DOMAIN: (inputs[DOMAIN] + 1) % 3}, {STATE: inputs[STATE] + 1}):
        found = network.chunk(inputs | changed, draws)
        assert (found - expected["sample.chunk"]).abs().max() > 1e-3
