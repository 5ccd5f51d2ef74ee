"""language_act: ACT conditioned on an instruction, its text encodings and its augmentation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_policies import batch_of, episode, make_parts, make_policy, small_act, small_language_act
from tests.refusals import refuses

from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.errors import UsageError
from proctor.fingerprint import ConfigUse, defining_fields
from proctor.policies.base import Query
from proctor.policies.language_act.config import LanguageActConfig
from proctor.policies.language_act.network import (
    JITTER,
    SHIFT,
    WORD_DROP,
    bucket_weights,
    shift_images,
)
from proctor.policies.language_act.text_encoding import piece_weights, word_pieces
from proctor.policies.lerobot.config.config import decode_config, encode_config
from proctor.policies.runtime.network import LR_MULTIPLIER, draw_noise


def told(words: str, **changes: object) -> np.ndarray:
    """Return the actions of one policy for one observation, its task being put in ``words``."""
    policy = make_policy(small_language_act(**changes))
    spec = episode(0)
    spec = replace(spec, task=replace(spec.task, instruction=words))
    return policy.act(batch_of(policy, [Query(spec, 0, None)]))


def pieces(words: str) -> set[int]:
    return set(word_pieces(words).flatten().tolist()) - {0}


def test_words_of_one_stem_share_pieces_and_others_do_not():
    assert pieces("push") & pieces("Pushing!")
    assert not pieces("push") & pieces("reach")
    assert len(pieces("Push the puck") & pieces("push, the PUCK.")) >= 6


FIRST_ENCODING_OF_PUSH = [219, 2189, 2234, 1556, 3366, 0]
PLEASE = " ".join(["please"] * 70)
DIFFERENT = [
    ("move the arm by +x", "move the arm by -x"),
    ("set the dial to -3", "set the dial to 3"),
    ("set it to - 3", "set it to -3"),
    ("press A", "press a"),
    ("put the red cup on the blue plate", "put the blue cup on the red plate"),
    ("go", "go go"),
    ("把桌子上的红色杯子放进左边的盘子里", "把桌子上的红色杯子放进右边的盘子里"),
    ("\N{WHITE LEFT POINTING BACKHAND INDEX}", "\N{WHITE RIGHT POINTING BACKHAND INDEX}"),
    (f"{PLEASE} open", f"{PLEASE} close"),
    ("", "?"),
    ("\ud800", "\ud801"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_texts_are_different_to_the_network(one, other):
    assert piece_weights(word_pieces(one)) != piece_weights(word_pieces(other))


def test_different_texts_are_different_actions():
    assert not np.array_equal(told("move by +x"), told("move by -x"))
    assert not np.array_equal(told("red on blue"), told("blue on red"))


def test_white_space_alone_makes_no_other_text():
    np.testing.assert_array_equal(word_pieces(" push  the\npuck "), word_pieces("push the puck"))


def test_hearing_names_two_texts_that_are_the_same_to_the_network():
    old, new = (
        make_parts(small_language_act(text_encoding=version)).instruction_encoder(
            ConfigUse.EVALUATION
        )
        for version in (1, 2)
    )
    for one, other in DIFFERENT:
        assert new.find_indistinguishable(["press", one, other]) is None
    assert old.find_indistinguishable(["press", "by +x", "by -x"]) == ("by +x", "by -x")
    assert old.find_indistinguishable(["red on blue", "blue on red"]) == (
        "red on blue",
        "blue on red",
    )
    assert old.find_indistinguishable(["push", "push", " push ", "pull"]) is None


def test_a_checkpoint_of_the_first_encoding_reads_as_it_did():
    raw = json.loads(encode_config(small_language_act(), "0.6.1"))
    assert decode_config(raw, LanguageActConfig, "config.json").text_encoding == 2
    del raw["text_encoding"]  # as all were before there was a second one
    old = decode_config(raw, LanguageActConfig, "config.json")
    assert json.loads(encode_config(old, "0.6.1"))["text_encoding"] == 1
    read = old.encode_instruction("Push, the +x!")["words"]
    assert read.shape == (32, 12)
    assert read[0, :6].tolist() == FIRST_ENCODING_OF_PUSH
    np.testing.assert_array_equal(read, old.encode_instruction("push the x")["words"])


def test_an_encoding_of_the_future_is_refused():
    with refuses(UsageError, "checkpoint.too-new") as refused:
        small_language_act(text_encoding=3).validate()
    assert "text_encoding is 3" in str(refused.value)


def test_metaworlds_instructions_are_told_apart():
    heard = {row.instruction: piece_weights(word_pieces(row.instruction)) for row in TASKS}
    assert len(set(heard.values())) == len(heard) == 49  # push and push-back have the same words


def test_other_words_are_other_actions():
    push = told("push the puck")
    np.testing.assert_array_equal(push, told(" push the  puck"))
    assert not np.array_equal(push, told("reach the goal"))


def test_words_given_by_hand_win_over_the_tasks_own():
    push, name = told("push the puck"), episode(0).task.name
    np.testing.assert_array_equal(told("reach", instruction="push the puck"), push)
    by_name = {name: "push the puck"}
    both = told("reach", instruction="pull", instructions=by_name)
    np.testing.assert_array_equal(both, push)


def test_words_given_by_hand_are_part_of_the_protocol():
    given = make_policy(small_language_act(instruction="push")).protocol()
    assert given != make_policy(small_language_act()).protocol()


def test_a_policy_without_language_takes_no_instruction():
    with refuses(UsageError, "policy.takes-no-instruction"):
        small_act(instruction="push").validate()


@pytest.mark.parametrize(
    ("field", "value"), [("random_shift", -1), ("state_noise", -0.1), ("word_dropout", 1.0)]
)
def test_a_field_out_of_range_is_named(field, value):
    with refuses(UsageError, "policy.out-of-range") as refused:
        small_language_act(**{field: value}).validate()
    assert field in str(refused.value)


def test_only_the_part_of_a_picture_that_counts_is_looked_at():
    policy = make_policy(small_language_act(crop=[8, 4, 16, 16]))
    seen = batch_of(policy, [Query(episode(0), 0, None)])
    camera = next(key for key, value in seen.observations.items() if value.dtype == np.uint8)
    inside, outside = (
        replace(seen, observations={**seen.observations, camera: seen.observations[camera].copy()})
        for _ in range(2)
    )
    outside.observations[camera][:, :, :8] += 100
    inside.observations[camera][:, :, 8:24, 4:20] += 100
    np.testing.assert_array_equal(policy.act(outside), policy.act(seen))
    assert not np.array_equal(policy.act(inside), policy.act(seen))


@pytest.mark.parametrize(
    ("crop", "code"),
    [
        ([0, 0, 0, 8], "policy.invalid-shape"),
        ([-1, 0, 8, 8], "policy.invalid-shape"),
        ([0, 0, 8], "policy.invalid-shape"),
        ([8, 0, 1000, 8], "policy.crop-too-large"),
    ],
)
def test_an_invalid_crop_is_refused(crop, code):
    with refuses(UsageError, code):
        small_language_act(crop=crop).validate()


def test_only_a_training_disturbs_what_is_seen_and_heard():
    config = small_language_act(dropout=0.0)
    network = make_parts(config).network
    generator = torch.Generator().manual_seed(0)
    words = torch.from_numpy(word_pieces("push the puck"))
    batch = {
        "observation.state": torch.randn(2, 4, generator=generator),
        "observation.image": torch.rand(2, 3, 64, 64, generator=generator),
        "words": words.expand(2, *words.shape),
        "action": torch.randn(2, 6, 3, generator=generator),
        "action_is_pad": torch.zeros(2, 6, dtype=torch.bool),
    }
    one, other = (draw_noise(network.loss_draws, generator, 2) for _ in range(2))
    assert set(one) == {SHIFT, JITTER, WORD_DROP}
    with torch.no_grad():
        network.eval()
        assert network.loss(batch, one)[0] == network.loss(batch, other)[0]
        network.train()
        assert network.loss(batch, one)[0] != network.loss(batch, other)[0]


def test_a_training_computes_the_same_sentence_and_gradient_by_a_matrix_product():
    network = make_parts(small_language_act()).network.train()
    texts = ("push the puck", "open the drawer, slowly", "a a aa", "")
    words = torch.stack([torch.from_numpy(word_pieces(text)) for text in texts])
    weight = network.word_embed.weight
    product, lookup = bucket_weights(words) @ weight, network.mean_of_words(words)
    torch.testing.assert_close(product, lookup)
    expected, found = (
        torch.autograd.grad((value * value.detach()).sum(), weight)[0]
        for value in (lookup, product)
    )
    torch.testing.assert_close(found, expected)
    assert not found[0].any()  # padding


def test_cropping_while_shifting_gives_the_same_bits_as_cropping_afterwards():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 3, 9, 7, generator=generator)
    by = torch.rand(3, 2, generator=generator)
    afterwards = shift_images(images, by, most=4)[..., 2:7, 1:6]
    assert torch.equal(shift_images(images, by, most=4, crop=[2, 1, 5, 5]), afterwards)


@pytest.mark.parametrize("crop", [[8, 10, 40, 48], [0, 0, 64, 48], [20, 14, 44, 50]])
def test_a_training_reads_only_the_pixels_that_a_shift_moves_into_the_crop(crop):
    network = make_parts(small_language_act(dropout=0.0, crop=crop, random_shift=5)).network
    generator = torch.Generator().manual_seed(0)
    words = torch.from_numpy(word_pieces("push the puck"))
    whole = {
        "observation.state": torch.randn(4, 4, generator=generator),
        "observation.image": torch.rand(4, 3, 64, 64, generator=generator),
        "words": words.expand(4, *words.shape),
        "action": torch.randn(4, 6, 3, generator=generator),
        "action_is_pad": torch.zeros(4, 6, dtype=torch.bool),
    }
    top, left, height, width = network.training_regions()["observation.image"]
    assert height < 64 or width < 64
    part = whole["observation.image"][..., top : top + height, left : left + width]
    draws = draw_noise(network.loss_draws, generator, 4)
    network.train()
    losses = [network.loss(b, draws)[0] for b in (whole, whole | {"observation.image": part})]
    assert losses[0] == losses[1]


def one_observation() -> dict[str, torch.Tensor]:
    return {
        "observation.state": torch.zeros(1, 4),
        "observation.image": torch.rand(1, 3, 64, 64),
        "words": torch.from_numpy(word_pieces("push the puck")).expand(1, -1, -1),
    }


@pytest.mark.parametrize("normalised", [False, True])
def test_degenerate_inputs_have_finite_gradients(normalised):
    """Black images, no words, constant states and padding alone: a division by 0 would be NaN."""
    config = small_language_act(feature_norm=normalised, qk_norm=normalised)
    network = make_parts(config).network.train()
    with torch.no_grad():
        for block in network.backbone.blocks:  # a new block is its shortcut: open it
            block.conv2.weight.fill_(1e-3)
    usual = one_observation() | {
        "action": torch.ones(1, 6, 3),
        "action_is_pad": torch.zeros(1, 6, dtype=torch.bool),
    }
    draws = draw_noise(network.loss_draws, torch.Generator().manual_seed(0), 1)
    for change in (
        {"words": torch.zeros_like(usual["words"])},
        {"observation.image": torch.zeros(1, 3, 64, 64)},
        {"observation.state": torch.full((1, 4), 1e6)},
        {"action_is_pad": torch.ones(1, 6, dtype=torch.bool)},
    ):
        network.zero_grad()
        loss, _ = network.loss(usual | change, draws)
        loss.backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(("fields", "grows"), [({}, False), ({"pre_norm": False}, True)])
def test_attention_does_not_grow_with_the_scale_of_image_features(fields, grows):
    network = make_parts(small_language_act(**fields)).network
    seen = []
    network.encoder.layers[0].self_attn.register_forward_pre_hook(
        lambda _, given: seen.append(float(given[0].abs().max()))
    )
    inputs = one_observation()
    with torch.no_grad():
        network.chunk(inputs, {})
        network.encoder_img_feat_input_proj.weight *= 1000
        network.chunk(inputs, {})
    assert (seen[1] > 10 * seen[0]) == grows


@pytest.mark.parametrize("normalised", [False, True])
def test_feature_norm_limits_what_the_blocks_multiply(normalised):
    network = make_parts(small_language_act(feature_norm=normalised)).network
    inputs, largest = one_observation(), []
    with torch.no_grad():
        sentence = network.encode_sentence(inputs["words"])
        for block in network.backbone.blocks:
            block.conv2.weight.normal_(0, 0.05)
        for factor in (1, 3):
            for block in network.backbone.blocks:
                block.conv1.weight *= factor
            features = network.backbone(inputs["observation.image"], sentence)
            largest.append(float(features.abs().max()))
    assert (largest[1] > 50 * largest[0]) != normalised


@pytest.mark.parametrize("normalised", [False, True])
def test_instructions_differ_though_the_sentence_mlp_is_off(normalised):
    network = make_parts(small_language_act(feature_norm=normalised)).network.eval()
    with torch.no_grad():
        network.sentence[1].bias.fill_(-100)
        said = [
            network.encode_sentence(torch.from_numpy(word_pieces(words))[None])
            for words in ("push the puck", "open the door")
        ]
    assert torch.equal(*said) != normalised


@pytest.mark.parametrize("normalised", [False, True])
def test_qk_norm_limits_the_logits_of_attention(normalised):
    network = make_parts(small_language_act(qk_norm=normalised)).network.eval()
    inputs, actions = one_observation(), []
    with torch.no_grad():
        for _ in range(2):
            actions.append(network.chunk(inputs, {}))
            for layer in (*network.encoder.layers, *network.decoder.layers):
                layer.self_attn.in_proj_weight[:64] *= 1000  # queries and keys
    assert torch.allclose(*actions, atol=1e-4) == normalised


def test_qk_norm_begins_with_the_same_projections():
    usual, normalised = (
        dict(make_parts(small_language_act(qk_norm=n)).network.named_parameters())
        for n in (False, True)
    )
    further = set(normalised) - set(usual)
    assert {name.rsplit(".", 2)[1] for name in further} == {"q_norm", "k_norm"}
    assert all(torch.equal(usual[name], normalised[name]) for name in usual)


def test_a_config_of_before_keeps_its_normalisation():
    raw = json.loads(encode_config(small_language_act(), "0.6.1"))
    assert all(raw.pop(name) is True for name in ("pre_norm", "feature_norm", "qk_norm"))
    before = decode_config(raw, LanguageActConfig, "config.json")
    assert before.pre_norm is False
    assert before.feature_norm is None
    assert before.qk_norm is None


def test_norms_that_are_off_stay_off_in_the_checkpoint():
    off = small_language_act(feature_norm=False, qk_norm=False)
    read = decode_config(json.loads(encode_config(off, "0.6.1")), LanguageActConfig, "config.json")
    assert defining_fields(read) == defining_fields(off)
    assert not read.feature_norm
    assert not read.qk_norm


@pytest.mark.parametrize(("fields", "ratio"), [({}, 1.0), ({"optimizer_lr_backbone": 1e-4}, 0.2)])
def test_the_image_encoder_follows_the_optimisers_rate(fields, ratio):
    network = make_parts(small_language_act(**fields)).network
    others, backbone = network.parameter_groups()
    assert "lr" not in backbone
    assert backbone[LR_MULTIPLIER] == pytest.approx(ratio)
    n = len(others["params"]) + len(backbone["params"])
    assert n == len(list(network.parameters()))


def test_an_uncropped_network_reads_whole_images():
    assert make_parts(small_language_act()).network.training_regions() == {}
    whole = make_parts(small_language_act(crop=[0, 0, 64, 64])).network
    assert whole.training_regions() == {}


def test_pictures_are_moved_each_by_its_own_draw_and_their_border_is_drawn_out():
    picture = torch.arange(25.0).reshape(1, 1, 5, 5)
    moved = shift_images(torch.cat([picture] * 2), torch.tensor([[0.5, 0.5], [0.999, 0.0]]), most=1)
    np.testing.assert_array_equal(moved[0], picture[0])
    below = np.concatenate([picture[0, 0, 1:], picture[0, 0, -1:]])  # one row further down
    np.testing.assert_array_equal(moved[1, 0], np.concatenate([below[:, :1], below[:, :-1]], 1))


def test_norms_that_are_off_are_one_definition_however_they_are_set():
    unset, off, on = (small_language_act(qk_norm=value) for value in (None, False, True))
    assert defining_fields(unset) == defining_fields(off) != defining_fields(on)
    assert defining_fields(on) == defining_fields(small_language_act())
