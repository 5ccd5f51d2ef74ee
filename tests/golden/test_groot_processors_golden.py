"""GR00T's processors against LeRobot's: packing, images, prompts and decoded actions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from recipes import GOLDEN, assert_close, hash_input, load_case
from safetensors.torch import load_file

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.groot.network.qwen_sizes import VisionSizes
from proctor.policies.groot.network.qwen_vision import QwenVision
from proctor.policies.groot.steps.decode_steps import ActionDecode, ActionUnpack
from proctor.policies.groot.steps.encode_step import VlmEncode
from proctor.policies.groot.steps.images import ImageGeometry
from proctor.policies.groot.steps.statistics import flat_stats
from proctor.policies.groot.steps.steps import ACTION_MASK, EMBODIMENT, VIEW, PackInputs
from proctor.policies.lerobot.processors.step import PromptInputs
from proctor.policies.lerobot.tokenizer.tokenizer import Tokenizers

pytestmark = pytest.mark.vla
EXACT, SCALED = 0.0, 1e-6


def notes_of(name):
    return json.loads((GOLDEN / name / "notes.json").read_text())


@pytest.mark.parametrize("size", ["30x44", "48x36"])
@pytest.mark.parametrize("letter_box", [0, 1])
def test_images_are_resized_and_cropped_as_in_lerobot(size, letter_box):
    recipe = notes_of("groot_n17_images")["recipe_inputs"][size]
    expected = load_file(GOLDEN / "groot_n17_images" / "outputs.safetensors")
    drawn = hash_input(recipe["name"], recipe["shape"], 0, 1)
    image = (drawn * 255).floor()[None]
    usual = ImageGeometry((32, 32), 29 / 32, letter_box=bool(letter_box))
    wanted = expected[f"torch.{size}.letterbox{letter_box}"].float()
    assert (usual(image)[0] - wanted).abs().max() <= 1
    wanted = expected[f"albumentations.{size}.letterbox{letter_box}.cropcenter"].float()
    kept = replace(usual, keeps_aspect=True)
    found = kept(image)[0].movedim(0, -1)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1
    random = expected[f"albumentations.{size}.letterbox{letter_box}.crop0.2_0.9"].float()
    corners = torch.tensor([[0.5, 0.5], [0.2, 0.9]])
    found = kept(image.expand(2, -1, -1, -1), corners)[1].movedim(0, -1)
    assert found.shape == random.shape
    assert (found - random).abs().max() <= 1


@pytest.fixture(scope="module")
def processed(tmp_path_factory):
    """Return the steps of the golden, its inputs and what LeRobot made of them."""
    config, inputs, expected = load_case("groot_n17_processors")
    notes = notes_of("groot_n17_processors")
    folder = tmp_path_factory.mktemp("tokenizer")
    text = (GOLDEN / "groot_n17_processors" / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text)
    (folder / "tokenizer_config.json").write_text('{"pad_token": "<|endoftext|>"}')
    (folder / "preprocessor_config.json").write_text(json.dumps(notes["image_processor"]))
    stats = {
        key: {name: inputs[f"stats.{key}.{name}"] for name in ("min", "max")}
        for key in (STATE, ACTION)
    }
    pack = PackInputs(
        action_horizon=config["chunk_size"],
        valid_action_horizon=config["chunk_size"],
        max_state_dim=config["max_state_dim"],
        max_action_dim=config["max_action_dim"],
        stats=stats,
    )
    encode = VlmEncode(
        image_crop_size=notes["image_crop_size"], image_target_size=notes["image_target_size"]
    ).with_tokenizers(Tokenizers(given=str(folder)))
    return pack, encode, inputs, expected, notes


def test_states_actions_and_masks_are_packed_as_in_lerobot(processed):
    pack, _, inputs, expected, _ = processed
    names = (STATE, ACTION, "action_is_pad", "observation.images.wrist", "observation.images.front")
    packed = pack({key: inputs[key] for key in names})
    assert_close("state", packed[STATE], expected["train.state"][:, 0], SCALED)
    assert_close("action", packed[ACTION], expected["train.action"], SCALED)
    assert_close("mask", packed[ACTION_MASK], expected["train.action_mask"], EXACT)
    assert packed[EMBODIMENT].tolist() == expected["train.embodiment_id"].tolist()


def test_views_become_the_patches_of_lerobot(processed):
    pack, encode, inputs, expected, _ = processed
    cameras = [key for key in inputs if key.startswith("observation.images")]
    seen = encode(pack({key: inputs[key] for key in cameras}))
    sizes = VisionSizes(hidden_size=16, num_heads=2, depth=1, patch_size=4,
                        deepstack_visual_indexes=[], out_hidden_size=8, intermediate_size=8,
                        num_position_embeddings=16)  # fmt: skip
    vision = QwenVision(sizes)
    views = [seen[f"{VIEW}0{n}"] for n in range(2)]
    rows = torch.stack([vision.patches(view) for view in views], 1).flatten(0, 2)
    difference = (rows - expected["train.pixel_values"]).abs()
    one = 2 / 255
    assert difference.max() < 1.5 * one  # a pixel may be rounded to its neighbour
    assert (difference > one / 2).float().mean() < 0.01
    grid = views[0].shape[-2] // 4, views[0].shape[-1] // 4
    assert expected["train.image_grid_thw"][0].tolist() == [1, *grid]


def test_prompts_are_tokenized_as_in_lerobot(processed):
    pack, encode, _, expected, notes = processed
    told = pack.encode_prompt(PromptInputs(tuple(notes["tasks"])))
    assert list(told.words) == notes["languages"]
    arrays = encode.encode_prompt(told).arrays
    start, pad, end = (encode.prompt.tokenizer.number(f"<|{name}|>") for name in
                       ("vision_start", "image_pad", "vision_end"))  # fmt: skip
    for row, theirs in enumerate(expected["train.input_ids"].tolist()):
        ours = arrays[LANGUAGE_TOKENS][row][arrays[LANGUAGE_MASK][row]].tolist()
        n = encode.prefix_length
        assert ours[n : n + 2] == [start, end]
        whole = [*ours[:n], *([start, *[pad] * 16, end] * 2), *ours[n + 2 :]]
        assert theirs[-len(whole) :] == whole
        assert set(theirs[: -len(whole)]) <= {encode.prompt.pad}


def test_actions_are_unnormalised_as_in_lerobot(processed):
    pack, _, inputs, expected, _ = processed
    step = ActionUnpack(env_action_dim=4, clip_normalized_action=True, stats=pack.stats)
    found = step({ACTION: inputs["model_action"]})[ACTION]
    assert_close("chunk", found, expected["post.chunk"], SCALED)
    found = step({ACTION: inputs["model_action"][:, 0]})[ACTION]
    assert_close("one action", found, expected["post.single"], SCALED)


@pytest.mark.parametrize("name", ["groot_n17_decode_libero", "groot_n17_decode_relative"])
def test_a_checkpoints_statistics_pack_and_decode_as_in_lerobot(name):
    config, inputs, expected = load_case(name)
    notes = notes_of(name)
    tag, kwargs = config["embodiment_tag"], notes["processor_config"]["processor_kwargs"]
    raw, modality = notes["statistics"][tag], kwargs["modality_configs"][tag]
    how = {"percentiles": config["use_percentiles"], "relative": config["use_relative_action"]}
    flat = flat_stats(raw, modality, name, **how)
    pack = PackInputs(
        action_horizon=config["max_action_horizon"],
        valid_action_horizon=config["action_horizon"],
        max_state_dim=config["max_state_dim"],
        max_action_dim=config["max_action_dim"],
        embodiment_tag=tag,
        embodiment_mapping=notes["embodiment_id"],
        use_percentiles=config["use_percentiles"],
        video_modality_keys=modality["video"]["modality_keys"],
        raw_stats=raw,
        modality_config=modality,
        stats={k: {n: torch.tensor(v) for n, v in each.items()} for k, each in flat.items()},
    )
    pack.check(name)
    cameras = {key: value for key, value in inputs.items() if key.startswith("observation.images")}
    assert [key.rsplit(".", 1)[1] for key in pack.view_keys(cameras)] == ["image", "image2"]
    packed = pack({STATE: inputs[STATE], ACTION: inputs[ACTION]})
    assert_close("state", packed[STATE], expected["pre.state"][:, 0], SCALED)
    assert_close("action", packed[ACTION], expected["train.action"], SCALED)
    assert_close("mask", packed[ACTION_MASK], expected["train.action_mask"], EXACT)
    assert packed[EMBODIMENT].tolist() == expected["pre.embodiment_id"].tolist()
    decode = ActionDecode(
        env_action_dim=inputs[ACTION].shape[-1],
        raw_stats=raw,
        modality_config=modality,
        use_percentiles=config["use_percentiles"],
        use_relative_action=config["use_relative_action"],
        action_decode_transform=notes["transform"],
    )
    decode.check(name)
    found = decode({ACTION: inputs["model_action"], STATE: inputs[STATE]})[ACTION]
    assert_close("chunk", found, expected["post.chunk"], SCALED)
    if "post.single" in expected:
        found = decode({ACTION: inputs["model_action"][:, 0], STATE: inputs[STATE]})[ACTION]
        assert_close("one action", found, expected["post.single"], SCALED)
