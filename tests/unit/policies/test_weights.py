"""Weights on their way into a network: in several files, in their own dtype, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refuses
from tests.unit.policies.small_policies import (
    batch_of,
    episode,
    fresh_queries,
    small_act,
    write_small,
)
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit, load_weights
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.policies.runtime.network import Network
from proctor.policies.runtime.quantized import Int8Linear, quantize

INDEX = "model.safetensors.index.json"


class Tied(Network):
    """A network whose head is its embedding."""

    takes_history = False
    tied: ClassVar[Mapping[str, str]] = {"head.weight": "embed.weight"}

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError

    def loss(self, batch: dict[str, Tensor], draws: dict[str, Tensor]) -> Any:
        raise NotImplementedError

    def compiled_modules(self) -> list[nn.Module]:
        return []


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_small(small_act(), tmp_path / "whole")


def shard(folder: Path, **index: Any) -> None:
    """Put the weights of a checkpoint into two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    places = {key: names[number % 2] for number, key in enumerate(tensors)}
    for name in names:
        save_file({k: t for k, t in tensors.items() if places[k] == name}, folder / name)
    told = {"metadata": {"total_size": 1}, "weight_map": places} | index
    (folder / INDEX).write_text(json.dumps(told))


def test_weights_in_several_files_are_those_of_one(whole: Path) -> None:
    before = read_checkpoint(whole)
    shard(whole)
    after = read_checkpoint(whole)
    for key, tensor in before.network.state_dict().items():
        assert torch.equal(after.network.state_dict()[key], tensor), key
    assert {name for name in after.files if name.startswith("model")} == {
        INDEX,
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


@pytest.mark.parametrize(
    ("index", "code"),
    [
        ({"weight_map": None}, "checkpoint.invalid-index"),
        ({"weight_map": []}, "checkpoint.invalid-index"),
        ({"weight_map": {"a": "../model.safetensors"}}, "checkpoint.invalid-index"),
        ({"weight_map": {"a": "/etc/passwd"}}, "checkpoint.invalid-index"),
        ({"weight_map": {"a": 3}}, "checkpoint.invalid-index"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "checkpoint.invalid-index"),
        ({"weight_map": {"a": "model-00001-of-00002.safetensors"}}, "checkpoint.missing-tensor"),
        ({"weight_map": {"a": "none.safetensors"}}, "checkpoint.missing-file"),
        (
            {"weight_map": {f"{n}": f"{n}.safetensors" for n in range(1001)}},
            "checkpoint.invalid-index",
        ),
    ],
)
def test_an_index_that_lies_is_one_line(whole: Path, index: Any, code: str) -> None:
    shard(whole, **index)
    with refuses(UsageError, code) as refused:
        read_checkpoint(whole)
    assert "\n" not in str(refused.value)


def test_a_network_about_to_be_filled_takes_no_memory_but_for_its_tables() -> None:
    with SkipWeightInit():
        network = Tied()
    assert network.embed.weight.is_meta
    assert network.get_buffer("table").tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_of_weights_that_are_one_a_file_may_have_either(name: str) -> None:
    with SkipWeightInit():
        network = Tied()
    given = torch.arange(28.0).reshape(7, 4).to(torch.bfloat16)
    assert load_weights(network, {f"model.{name}": given}, "model.", "here") == []
    assert network.head.weight is network.embed.weight
    assert network.embed.weight.dtype == torch.bfloat16
    assert network.embed.weight.data_ptr() == given.data_ptr()


def test_weights_stay_what_their_file_has_where_nothing_else_is_asked_for(whole: Path) -> None:
    file = whole / "model.safetensors"
    halved = {
        k: t.to(torch.bfloat16) if t.is_floating_point() else t for k, t in load_file(file).items()
    }
    file.unlink()
    save_file(halved, file)
    asked: dict[str | None, torch.dtype] = {
        None: torch.bfloat16,
        "float32": torch.float32,
        "float16": torch.float16,
    }
    for dtype, found in asked.items():
        policy = ChunkPolicy(read_checkpoint(whole, {"dtype": dtype}), "cpu")
        assert policy.dtype == found
        assert all(p.dtype == found for p in policy.network.parameters())
        policy.act(batch_of(policy, fresh_queries(policy, [episode(0)])))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_number_that_is_none_is_found(value: float, dtype: torch.dtype) -> None:
    weights = torch.zeros(7, 4, dtype=dtype)
    weights[3, 2] = value
    with refuses(UsageError, "checkpoint.not-finite"):
        load_weights(Tied(), {"embed.weight": weights}, "", "here")


def test_8_bit_weights_are_near_those_that_they_stand_for() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 3))
    x = torch.randn(5, 256)
    expected, exact = network(x), network[0].weight.clone()
    quantize(network)
    assert isinstance(network[0], Int8Linear)
    assert type(network[2]) is nn.Linear  # too small to be worth it
    step = exact.abs().amax(1, keepdim=True) / 127
    assert ((network[0].weight - exact).abs() <= step / 2 + 1e-7).all()
    assert network[0].numbers.dtype == torch.int8
    assert (network(x) - expected).abs().max() < 0.02


def test_a_policy_with_8_bit_weights_acts_nearly_as_with_its_own(tmp_path: Path) -> None:
    whole = write_small(small_act(dim_feedforward=600), tmp_path / "whole")
    plain = ChunkPolicy(read_checkpoint(whole), "cpu")
    small = ChunkPolicy(read_checkpoint(whole, {"quantize": "int8"}), "cpu")
    assert any(isinstance(module, Int8Linear) for module in small.network.modules())
    batch = batch_of(plain, fresh_queries(plain, [episode(0), episode(1)]))
    difference = np.abs(plain.act(batch) - small.act(batch)).max()
    assert 0 < difference < 0.05
    with refuses(UsageError, "policy.not-quantizable"):
        quantize(torch.nn.Tanh())
    with refuses(UsageError, "policy.unknown-choice"):
        read_checkpoint(whole, {"quantize": "int4"})
