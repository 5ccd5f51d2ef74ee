"""pi0-FAST against outputs that LeRobot computed, with the tokenizers that were made up for it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, load_case
from tests.tiny_pi import tiny_sizes

from proctor.features import ACTION, Feature, FeatureKind
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.pi0_fast.config import Pi0FastConfig
from proctor.policies.pi0_fast.fast import ActionTokenizer, FastCodec
from proctor.policies.pi0_fast.network import Pi0Fast

pytestmark = pytest.mark.vla

FORWARD = 1e-5
MADE_UP = json.loads((GOLDEN / "pi0_fast_tiny" / "notes.json").read_text())["made_up_tokenizer"]


class Pieces:
    """The golden's own codes: the longest piece that fits, greedily."""

    def __init__(self) -> None:
        lowest = MADE_UP["fast_min_token"]
        self.pieces = ["".join(chr(v - lowest) for v in piece) for piece in MADE_UP["fast_pieces"]]

    def encode(self, text: str) -> list[int]:
        codes = []
        while text:
            found = max((p for p in self.pieces if text.startswith(p)), key=len)
            codes.append(self.pieces.index(found))
            text = text[len(found) :]
        return codes

    def decode(self, codes: list[int]) -> str:
        if min(codes, default=0) < 0:
            raise ValueError("no such code")
        return "".join(self.pieces[code] for code in codes if code < len(self.pieces))


def speech() -> ActionTokenizer:
    ids = MADE_UP["ids"]
    return ActionTokenizer(
        fast=FastCodec(Pieces(), MADE_UP["fast_scale"], MADE_UP["fast_min_token"]),
        size=MADE_UP["vocab_size"],
        skip=MADE_UP["fast_skip_tokens"],
        begin=MADE_UP["bos"],
        end=ids["|"],
        stop=MADE_UP["eos"],
        opening=(ids["Action"], ids[":"], ids["▁"]),
    )


@pytest.fixture(scope="module")
def case():
    raw, inputs, expected = load_case("pi0_fast_tiny")
    with tiny_sizes(n_heads=4, vocabulary=96):
        network = Pi0Fast(decode_config(raw, Pi0FastConfig, "golden"))
    with torch.no_grad():
        fill_weights(network, "model.")
    network.action_tokenizer = speech()
    return network.eval(), inputs, expected


def said(case):
    """What says the golden's actions, and which of it does."""
    _, inputs, expected = case
    return {
        **inputs,
        "action.tokens": expected["action.tokens"],
        "action.token_mask": expected["action.token_mask"],
    }


def test_actions_become_the_same_coefficients_codes_and_tokens(case):
    _, inputs, expected = case
    for row, actions in enumerate(inputs["action"].numpy()):
        found = speech().fast.coefficients(actions)
        np.testing.assert_array_equal(found, expected["fast.dct_coeff"][row].numpy())
        assert speech().fast.encode(actions) == MADE_UP["fast_ids_of_actions"][row]
        tokens, real = expected["action.tokens"][row], expected["action.token_mask"][row]
        assert speech().tokens(actions) == tokens[real].tolist()


def test_codes_are_lent_the_same_tokens(case):
    _, inputs, expected = case
    found = [speech().swap_code_and_token(code) for code in inputs["fast.ids"].tolist()]
    assert found == expected["fast.mapped_ids"].tolist()


def test_what_was_said_becomes_the_same_actions(case):
    _, inputs, expected = case
    for row, ids in enumerate(inputs["detok.ids"].tolist()):
        found = speech().actions(ids, (5, 3), strict=False)
        assert_close(f"row {row}", torch.from_numpy(found), expected["detok.actions"][row], FORWARD)


def test_what_says_no_actions_becomes_zeros(case):
    _, inputs, _ = case
    bad = inputs["detok.bad_ids"][0].tolist()
    assert not speech().actions(bad, (5, 3), strict=False).any()
    good = inputs["detok.ids"][0].tolist()
    assert speech().actions(good, (5, 3), strict=True).any()
    assert not speech().actions(good[1:], (5, 3), strict=True).any()


@torch.no_grad()
def test_logits_and_the_loss_match(case):
    network, inputs, expected = case
    batch = said(case)
    tokens, real = batch["action.tokens"], batch["action.token_mask"]
    found = network.logits(inputs, tokens, real)
    there = real[:, :-1, None]
    assert_close("logits", found * there, expected["train.logits"] * there, FORWARD)
    loss, _ = network.loss(batch, {})
    assert_close("loss", loss, expected["train.loss"], FORWARD)


def test_gradients_match(case):
    network, _, expected = case
    network.zero_grad()
    network.loss(said(case), {})[0].backward()
    embedded = network.vlm.language.embed_tokens.weight.grad[20]
    assert_close("embedding", embedded, expected["train.grad.embed_row20"], 1e-4)
    head = network.vlm.lm_head.weight.grad[20]
    assert_close("head", head, expected["train.grad.lm_head_row20"], 1e-4)
    norm = torch.stack([p.grad.norm() for p in network.parameters()]).norm()
    assert_close("norm", norm, expected["train.grad_norm"], 1e-4)


def test_the_same_is_said_and_a_row_ends_where_it_ends(case):
    network, inputs, expected = case
    assert torch.equal(network.generate(inputs), expected["decode.ids"])
    first = {key: value[:1] for key, value in inputs.items()}
    network.action_tokenizer = ActionTokenizer(**{**vars(speech()), "end": 82})
    assert torch.equal(network.generate(first), expected["decode.row0_early_stop"])
    network.action_tokenizer = speech()


@torch.no_grad()
def test_what_is_remembered_changes_no_logit(case, monkeypatch):
    network, inputs, expected = case
    seen = []
    choose = network.sample_token
    monkeypatch.setattr(
        network,
        "sample_token",
        lambda out, c: (seen.append(network.vlm.lm_head(out)), choose(out, c))[1],
    )
    network.generate(inputs)
    assert_close("logits", torch.stack(seen, 1), expected["decode.logits"], FORWARD)


def test_drawn_tokens_follow_their_chances(case):
    network, _, _ = case
    network.config.temperature = 0.7
    out = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 32)).astype(np.float32)) * 3
    choices = (torch.arange(20_000) + 0.5) / 20_000
    with torch.no_grad():
        chances = (network.vlm.lm_head(out)[0] / 0.7).softmax(-1)
        found = network.sample_token(out.expand(20_000, -1), choices)
    network.config.temperature = 0.0
    shares = torch.bincount(found, minlength=96) / 20_000
    assert_close("shares", shares, chances, 1e-4)


def test_at_its_true_size_it_has_every_tensor_of_the_published_layout_in_its_order():
    features = {
        "observation.images.base": Feature(FeatureKind.VISUAL, (224, 224, 3), "uint8"),
        "observation.state": Feature(FeatureKind.STATE, (8,), "float32"),
    }
    action = {ACTION: Feature(FeatureKind.ACTION, (7,), "float32")}
    with torch.device("meta"), SkipWeightInit():
        network = Pi0Fast(Pi0FastConfig(input_features=features, output_features=action))
    found = [f"model.{name} {list(p.shape)}" for name, p in network.state_dict().items()]
    stored = gzip.decompress((GOLDEN / "keys_pi0_fast.txt.gz").read_bytes()).decode().splitlines()
    assert found == stored[1:]
