"""Payloads, frames and chunks of LeRobot 0.6.1's actor-learner protocol."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden.recipes import GOLDEN, recipe_input, recipe_weight

from proctor.protocols import actor_learner
from proctor.protocols.formats.protobuf import (
    CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    ChunkAssembler,
    decode_fields,
    encode_chunks,
)
from proctor.protocols.formats.torch_archive import load_archive, save_archive
from proctor.rl.link.payloads import (
    decode_interaction,
    decode_transitions,
    decode_weights,
    encode_interaction,
    encode_transitions,
    encode_weights,
)

FOLDER = GOLDEN / "actor_learner_wire"
NOTES = json.loads((FOLDER / "notes.json").read_text())
PAYLOADS = {
    name: (FOLDER / f"{name}.bin").read_bytes()
    for name in ("transitions", "parameters", "interaction")
}


def same_tree(ours: Any, torchs: Any) -> bool:
    """Whether a decoded tree equals torch's, with the same dtypes and shapes."""
    match torchs:
        case torch.Tensor():
            values = torchs.numpy()
            return ours.dtype == values.dtype and np.array_equal(ours, values)
        case dict():
            return list(ours) == list(torchs) and all(same_tree(ours[k], torchs[k]) for k in ours)
        case list():
            return len(ours) == len(torchs) and all(map(same_tree, ours, torchs))
    return type(ours) is type(torchs) and bool(ours == torchs)


@pytest.mark.parametrize("name", list(PAYLOADS))
def test_a_payload_has_lerobots_frames(name: str) -> None:
    payload, wire = PAYLOADS[name], NOTES["wire"][name]
    assert (len(payload), zlib.crc32(payload)) == (wire["payload_bytes"], wire["payload_crc32"])
    frames = list(encode_chunks(payload))
    assert [zlib.crc32(frame) for frame in frames] == [
        frame["serialized_crc32"] for frame in wire["frames"]
    ]
    stored = FOLDER / f"{name}.frame0.pb"
    if stored.exists():
        assert frames == [stored.read_bytes()]
    assert ChunkAssembler(len(payload)).add(frames[0]) == payload


@pytest.mark.parametrize("size", [int(size) for size in NOTES["chunking_of_payload_length"]])
def test_payloads_are_cut_into_lerobots_chunks(size: int) -> None:
    payload = np.random.default_rng(0).bytes(size)
    frames = list(encode_chunks(payload))
    states = [[fields[1], len(fields[2])] for fields in map(decode_fields, frames)]  # type: ignore[arg-type]
    assert states == NOTES["chunking_of_payload_length"][str(size)]
    assembler = ChunkAssembler(size)
    assert [assembler.add(frame) for frame in frames][-1:] == ([payload] if size else [])


def test_the_service_has_lerobots_names_and_limits() -> None:
    assert f"{NOTES['package']}.LearnerService" == actor_learner.SERVICE
    paths = {method["path"] for method in NOTES["services"]["LearnerService"].values()}
    assert paths == {
        actor_learner.call_path(method)
        for method in (
            actor_learner.READY,
            actor_learner.PARAMETERS,
            actor_learner.TRANSITIONS,
            actor_learner.INTERACTIONS,
        )
    }
    assert (NOTES["chunk_size"], NOTES["max_message_size"]) == (CHUNK_BYTES, MAX_MESSAGE_BYTES)


def test_transitions_are_decoded_as_torch_decodes_them() -> None:
    tree = load_archive(PAYLOADS["transitions"])
    expected = torch.load(io.BytesIO(PAYLOADS["transitions"]), weights_only=True)
    assert same_tree(tree, expected)
    decoded = decode_transitions(PAYLOADS["transitions"])
    assert len(decoded) == len(expected) > 1
    for place, (ours, theirs) in enumerate(zip(decoded, expected, strict=True)):
        for kind, arrays, name in (
            ("state", ours.observation, "s"),
            ("next_state", ours.next_observation, "n"),
        ):
            for key, array in arrays.items():
                image = key.startswith("observation.image")
                recipe = f"actor_learner_wire:{name}{'img' * image}{place}"
                shape = list(theirs[kind][key].shape)
                made = recipe_input(recipe, shape, 0.0 if image else -1.0, 1.0)
                assert np.array_equal(array, made[0].numpy())
        assert np.array_equal(ours.action, theirs["action"].numpy())
        assert (ours.reward, ours.done, ours.truncated) == (
            theirs["reward"],
            theirs["done"],
            theirs["truncated"],
        )
        info = {name: float(value) for name, value in theirs["complementary_info"].items()}
        assert ours.complementary_info == info


def test_torch_reads_our_transitions_as_lerobots() -> None:
    ours = encode_transitions(decode_transitions(PAYLOADS["transitions"]), for_lerobot=True)
    expected = torch.load(io.BytesIO(PAYLOADS["transitions"]), weights_only=True)
    assert same_tree(load_archive(ours), expected)
    assert same_tree(load_archive(PAYLOADS["transitions"]), torch.load(io.BytesIO(ours)))


def test_weights_are_decoded_and_encoded_as_torch_does() -> None:
    weights = decode_weights(PAYLOADS["parameters"])
    assert weights.version is None
    shapes = {
        module: {key: list(array.shape) for key, array in arrays.items()}
        for module, arrays in weights.modules.items()
    }
    assert shapes == NOTES["parameters_keys"]
    for module, arrays in weights.modules.items():
        for key, array in arrays.items():
            assert np.array_equal(array, recipe_weight(f"{module}.{key}", torch.Size(array.shape)))
    read = torch.load(io.BytesIO(encode_weights(weights, for_lerobot=True)), weights_only=True)
    assert same_tree(weights.modules, read)


def test_an_interaction_is_decoded_and_encoded() -> None:
    message = decode_interaction(PAYLOADS["interaction"])
    assert message.interaction_step == NOTES["interaction"]["Interaction step"]
    assert message.extra["Policy frequency [Hz]"] == 10.5
    import pickle

    read = pickle.loads(encode_interaction(message))
    assert read == NOTES["interaction"]
    assert list(map(type, read.values())) == list(map(type, NOTES["interaction"].values()))


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((0, 3), np.float32),
        np.asarray(True),
        np.arange(6, dtype=np.int64).reshape(1, 2, 3),
        np.arange(6, dtype=np.uint8),
        np.linspace(0, 1, 4, dtype=np.float64),
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
    ],
    ids=lambda values: f"{values.dtype}-{values.shape}",
)
def test_arrays_of_each_kind_survive_both_ways(values: Any) -> None:
    tree = {"one": values, "again": [values, None, 2**40, -1, "text", 0.5, False]}
    read = torch.load(io.BytesIO(save_archive(tree)), weights_only=True)
    assert same_tree(tree, read)
    assert read["one"].untyped_storage().data_ptr() == read["again"][0].untyped_storage().data_ptr()
    out = io.BytesIO()
    torch.save(read, out)
    assert same_tree(load_archive(out.getvalue()), read)


def test_strided_tensors_are_read() -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4)
    tree = {"permuted": tensor.permute(2, 0, 1), "row": tensor[1, 1], "kept": tensor[:1, 1:]}
    out = io.BytesIO()
    torch.save(tree, out)
    assert same_tree(load_archive(out.getvalue()), tree)
