"""GR00T N1.5 against outputs that LeRobot 0.5.1 computed: head and backbone."""

from __future__ import annotations

import json

import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, load_case, recipe_weight
from safetensors.torch import load_file

from proctor.policies.groot.network.backbone import BackboneTokens
from proctor.policies.groot.network.eagle import EagleBackbone
from proctor.policies.groot.network.head import ActionHead
from proctor.policies.groot.network.sizes import decode_eagle, decode_n15_head

pytestmark = pytest.mark.vla

FORWARD, SAMPLED = 1e-5, 1e-4


@pytest.fixture(scope="module")
def head_case():
    folder = GOLDEN / "groot_n15_head"
    inputs, expected = (load_file(folder / f"{n}.safetensors") for n in ("inputs", "outputs"))
    head = ActionHead(decode_n15_head(json.loads((folder / "config.json").read_text()), "golden"))
    fill_weights(head, "")
    return head.eval(), inputs, expected


def context_of(head, inputs):
    valid = inputs["backbone_attention_mask"].bool()
    tokens = BackboneTokens(inputs["backbone_features"], valid, [])
    ids = inputs["embodiment_id"]
    return head.context(tokens, inputs["state"][:, 0], ids, upstream=True)


def test_the_heads_parameters_are_lerobots_in_its_order(head_case):
    keys = json.loads((GOLDEN / "groot_n15_head/notes.json").read_text())["keys"]
    assert {k: list(v.shape) for k, v in head_case[0].state_dict().items()} == keys
    assert list(head_case[0].state_dict()) == list(keys)


def test_the_heads_parts_match(head_case):
    head, inputs, expected = head_case
    context = context_of(head, inputs)
    assert_close("vlln", head.vlln(inputs["backbone_features"]), expected["vlln"], FORWARD)
    valid = inputs["backbone_attention_mask"].bool()
    tokens = BackboneTokens(inputs["backbone_features"], valid, [])
    rows = head.encode_context(tokens, upstream=True)
    assert_close("vl_embeds", rows, expected["vl_embeds"], FORWARD)
    assert_close("state", context.state, expected["state_features"], FORWARD)
    time = inputs["time"]
    t = time[:, None, None]
    x = (1 - t) * inputs["noise"] + t * inputs["action"]
    bucket = (time * 1000).long()
    embedded = head.action_encoder.embed_time(bucket)
    found = head.velocity(x, embedded, head.model.modulations(bucket), context)
    assert_close("velocity", found, expected["velocity_pred"], FORWARD)


def test_the_heads_loss_and_gradients_match(head_case):
    head, inputs, expected = head_case
    context = context_of(head, inputs)
    errors = head.errors(context, inputs["action"], inputs["noise"], inputs["time"])
    mask = inputs["action_mask"]
    loss = (errors * mask).sum() / mask.sum()
    assert_close("loss", loss, expected["loss"], FORWARD)
    loss.backward()
    named = dict(head.named_parameters())
    for key in (key for key in expected if key.startswith("grad.")):
        assert_close(key, named[key.removeprefix("grad.")].grad, expected[key], 1e-4)


@pytest.mark.parametrize("steps", [1, 4])
def test_sampled_chunks_match(head_case, steps):
    head, inputs, expected = head_case
    with torch.no_grad():
        found = head.sample(context_of(head, inputs), inputs["sample_noise"], steps)
    assert_close("sample", found, expected[f"sample_{steps}_steps"], SAMPLED)


@pytest.fixture(scope="module")
def backbone_case():
    raw, inputs, expected = load_case("groot_n15_backbone")
    backbone = EagleBackbone(decode_eagle(raw, "golden"))
    fill_weights(backbone, "")
    embeddings = backbone.language.embed_tokens.weight  # also filled as the tied lm_head
    key = "eagle_model.language_model.model.embed_tokens.weight"
    embeddings.data.copy_(recipe_weight(key, embeddings.shape))
    return backbone.eval(), inputs, expected


def embedded(backbone, inputs):
    """Return the prompt with image tokens at the golden's places, which differ by row."""
    seen = backbone.encode_views([inputs["pixel_values"]])[0]
    x = backbone.language.embed_tokens(inputs["input_ids"]).clone()
    x[inputs["input_ids"] == backbone.sizes.image_token_index] = seen.flatten(0, 1)
    return x


def test_the_vision_encoder_matches(backbone_case):
    backbone, inputs, expected = backbone_case
    with torch.no_grad():
        assert_close("vision", backbone.visual(inputs["pixel_values"]), expected["vision"], FORWARD)
        seen = backbone.encode_views([inputs["pixel_values"]])[0]
        assert_close("mlp1", seen, expected["mlp1"], FORWARD)


def test_the_backbones_features_match(backbone_case):
    backbone, inputs, expected = backbone_case
    valid = inputs["attention_mask"].bool()
    with torch.no_grad():
        x = embedded(backbone, inputs)
        assert_close("embedded", x[valid], expected["hidden0"][valid], FORWARD)
        found = backbone.encode_tokens(x, valid, upstream=True)
    assert_close("features", found[valid], expected["backbone_features"][valid], FORWARD)


def test_a_row_has_the_same_features_with_padding_at_its_end(backbone_case):
    backbone, inputs, expected = backbone_case
    image, n_tokens = backbone.sizes.image_token_index, backbone.sizes.image_tokens
    for row in range(2):
        valid = inputs["attention_mask"][row].bool()
        given = inputs["input_ids"][row][valid].tolist()
        tokens, parts = without_images(given, image, n_tokens)
        padded = torch.tensor([[*tokens, 7, 7, 7]])
        parts[-1] = slice(parts[-1].start, padded.shape[1])
        shown = torch.arange(padded.shape[1])[None] < len(tokens)
        views = [inputs["pixel_values"][2 * row + n : 2 * row + n + 1] for n in range(2)]
        with torch.no_grad():
            found = backbone(views, padded, shown, parts, upstream=False)
        features = found.features[0, : len(given)]
        assert_close("row", features, expected["backbone_features"][row][valid], FORWARD)
        assert found.valid.sum() == len(given)
        assert [given[part] for part in found.images] == [[image] * n_tokens] * 2


def without_images(tokens, image, length):
    """Return a prompt without its image tokens, and its parts around them."""
    found, parts, start = [], [], 0
    i = 0
    while i < len(tokens):
        if tokens[i] == image:
            parts.append(slice(start, len(found)))
            start, i = len(found), i + length
        else:
            found.append(tokens[i])
            i += 1
    return found, [*parts, slice(start, len(found))]
