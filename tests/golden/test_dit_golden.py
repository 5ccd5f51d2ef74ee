"""The multi-task diffusion transformer against outputs that LeRobot computed, and its key list."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, load_case, recipe_weight

from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.multi_task_dit.config import DitConfig
from proctor.policies.multi_task_dit.network import Dit
from proctor.policies.multi_task_dit.transformer import NoisePredictor
from proctor.policies.runtime.network import LR_MULTIPLIER

pytestmark = pytest.mark.vla
FORWARD, SAMPLED, LOSS = 1e-5, 1e-4, 1e-6
CAMERAS = ("observation.images.top", "observation.images.side")
IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """Return the folder of the tiny CLIP that the goldens were made with: its sizes are enough."""
    notes = json.loads((GOLDEN / "multi_task_dit_clip" / "notes.json").read_text())
    sizes = notes["patched_sizes"]
    folder = tmp_path_factory.mktemp("tiny") / "clip"
    folder.mkdir()
    told = {"model_type": "clip", "vision_config": sizes["clip_vision"]}
    (folder / "config.json").write_text(json.dumps(told | {"text_config": sizes["clip_text"]}))
    return folder


def network_of(clip: Path, **changes) -> Dit:
    raw, _, _ = load_case("multi_task_dit_clip")
    config = decode_config(raw, DitConfig, "golden")
    named = {"vision_encoder_name": str(clip), "text_encoder_name": str(clip)}
    network = Dit(replace(config, **named, **changes))
    fill_weights(network, "")
    return network.eval()


@pytest.fixture(scope="module")
def case(clip):
    _, inputs, expected = load_case("multi_task_dit_clip")
    for camera in CAMERAS:
        inputs[camera] = (inputs[camera] - IMAGENET[0]) / (IMAGENET[1] + 1e-8)
    return network_of(clip).requires_grad_(False), inputs, expected


def test_the_denoiser_alone_matches():
    raw, inputs, expected = load_case("multi_task_dit_rope_fm")
    config = decode_config(raw, DitConfig, "golden")
    network = NoisePredictor(config, 10).eval().requires_grad_(False)
    fill_weights(network, "noise_predictor.")
    told = network.condition_modulation(inputs["cond"])
    assert_close("out", network(inputs["x"], inputs["t"], told), expected["out"], FORWARD)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_the_denoiser_alone_is_followed_to_lerobots_actions(clip, method):
    raw, inputs, expected = load_case("multi_task_dit_rope_fm")
    config = decode_config(raw | {"integration_method": method}, DitConfig, "golden")
    network = network_of(clip).requires_grad_(False)
    network.config = config
    network.noise_predictor = NoisePredictor(config, 10).eval().requires_grad_(False)
    fill_weights(network.noise_predictor, "noise_predictor.")
    found = network.sample(inputs["cond"], inputs["noise"][:, None])
    assert_close(method, found, expected[f"{method}_sample"], SAMPLED)


def test_images_are_seen_as_lerobot_sees_them(case):
    network, inputs, expected = case
    encoder, seen = network.observation_encoder.vision_encoder, []
    hook = encoder.model.vision_model.register_forward_hook(
        lambda _, given, found: seen.append((given[0], found))
    )
    network.observation_encoder(inputs)
    hook.remove()
    # Ours are camera by camera, LeRobot's cameras lie innermost.
    for place, name in enumerate(("image_pre", "vision_cls")):
        found = torch.stack([one[place] for one in seen], 1).flatten(0, 1)
        assert_close(name, found, expected[name], FORWARD)


def test_words_are_heard_as_lerobot_hears_them(case):
    network, inputs, expected = case
    words = inputs["observation.language.tokens"], inputs["observation.language.attention_mask"]
    encoder = network.observation_encoder.text_encoder
    assert_close(
        "text_pooled", encoder.text_encoder.text_model(*words), expected["text_pooled"], FORWARD
    )
    assert_close("text_feature", encoder(*words), expected["text_feature"], FORWARD)


@pytest.mark.parametrize("separate", [False, True])
def test_the_condition_matches(case, clip, separate):
    _, inputs, expected = case
    network = network_of(clip, use_separate_rgb_encoder_per_camera=separate)
    name = "separate.conditioning" if separate else "conditioning"
    assert_close(name, network.observation_encoder(inputs), expected[name], FORWARD)


def test_the_velocity_matches(case):
    network, inputs, expected = case
    told = network.noise_predictor.condition_modulation(expected["conditioning"])
    for x, time, name in (
        (expected["flow.x_t"], inputs["time"], "flow.v_t"),
        (inputs["noise"], torch.zeros(2), "flow.v_0"),
    ):
        assert_close(name, network.noise_predictor(x, time, told), expected[name], FORWARD)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "flow.sample_euler3"),
        ({"integration_method": "rk4"}, "flow.sample_rk4_3"),
        ({"objective": "diffusion", "noise_scheduler_type": "DDIM"}, "diffusion.sample_ddim4"),
    ],
)
def test_sampling_matches(case, clip, changes, name):
    _, inputs, expected = case
    network = network_of(clip, **changes).requires_grad_(False)
    assert network.draws["noise"][1] == (1, 8, 4)
    found = network.sample(network.observation_encoder(inputs), inputs["noise"][:, None])
    assert_close(name, found, expected[name], SAMPLED)


def test_the_chunk_matches(case):
    network, inputs, expected = case
    chunk = network.chunk(inputs, {"noise": inputs["noise"][:, None]})
    assert_close("chunk", chunk[:, :4], expected["flow.chunk"], SAMPLED)


def drawn_times(network: Dit, times: torch.Tensor) -> torch.Tensor:
    """Return the uniform numbers that give these times of Beta(1.5, 1)."""
    return (1 - times / network.config.timestep_sampling_s) ** 1.5


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_flow_matching_and_its_gradient_match(case, clip, masked):
    _, inputs, expected = case
    network = network_of(clip, do_mask_loss_for_padding=masked)
    draws = {"noise": inputs["noise"], "time": drawn_times(network, inputs["time"])}
    loss, _ = network.loss(inputs, draws)
    assert_close("loss", loss, expected["flow.loss_masked" if masked else "flow.loss"], FORWARD)
    if not masked:
        loss.backward()
        squares = [p.grad.square().sum() for p in network.parameters() if p.grad is not None]
        assert_close("norm", torch.stack(squares).sum().sqrt(), expected["flow.grad_norm"], 1e-4)


def test_the_loss_of_diffusion_matches(case, clip):
    _, inputs, expected = case
    network = network_of(clip, objective="diffusion").requires_grad_(False)
    time = (inputs["timestep"] + 0.5) / network.config.num_train_timesteps
    loss, _ = network.loss(inputs, {"noise": inputs["noise"], "time": time})
    assert abs(loss.item() / expected["diffusion.loss"].item() - 1) <= LOSS


def test_what_learns_and_how_fast_is_as_in_lerobot(clip):
    notes = json.loads((GOLDEN / "multi_task_dit_clip" / "notes.json").read_text())
    network = network_of(clip)
    fast, slow = network.parameter_groups()
    assert [len(fast["params"]), len(slow["params"])] == [g["n"] for g in notes["optimizer_groups"]]
    rate = slow[LR_MULTIPLIER] * network.config.optimizer_lr
    assert rate == notes["optimizer_groups"][1]["lr"]
    still = [name for name, p in network.named_parameters() if not p.requires_grad]
    assert set(still) < set(notes["params_without_gradient"])


def test_every_tensor_of_the_published_layout_has_a_place_and_none_is_left():
    lines = (GOLDEN / "keys_multi_task_dit.txt").read_text().splitlines()[1:]
    listed = {line.partition(" ")[0]: json.loads(line.partition(" ")[2]) for line in lines if line}
    raw, _, _ = load_case("multi_task_dit_clip")
    config = DitConfig(
        input_features=decode_config(
            raw
            | {
                "input_features": {
                    "observation.state": {"type": "STATE", "shape": [6]},
                    CAMERAS[0]: {"type": "VISUAL", "shape": [3, 256, 256]},
                },
                "output_features": {"action": {"type": "ACTION", "shape": [6]}},
            },
            DitConfig,
            "here",
        ).input_features,
        output_features=decode_config(
            raw | {"output_features": {"action": {"type": "ACTION", "shape": [6]}}},
            DitConfig,
            "here",
        ).output_features,
    )
    with SkipWeightInit():
        network = Dit(config)
    found = {key: list(value.shape) for key, value in network.state_dict().items()}
    assert found == listed
    assert list(found) == list(listed)


def test_the_recipe_reaches_every_weight(clip):
    """Or a golden that matches would say nothing of the weights that it leaves alone."""
    for key, value in network_of(clip).state_dict().items():
        assert torch.equal(value, recipe_weight(key, value.shape)), key
