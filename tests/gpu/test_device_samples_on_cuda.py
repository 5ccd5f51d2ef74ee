"""Samples in the memory of a CUDA device (--dataset.cache=device) have the bits of loaded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.training.data.device_samples import _as_words, place_on_device
from proctor.training.setup import prepare
from tests.unit.training.builders import SMALL_LANGUAGE_ACT, words, write_seen

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SEEN = SMALL_LANGUAGE_ACT | {
    "policy.crop": "[4,4,10,12]", "policy.random_shift": 2, "policy.device": "cuda",
    "batch_size": 5, "num_workers": 0, "steps": 12, "log_freq": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seen(tmp_path_factory.mktemp("data") / "seen")


def test_batches_have_the_same_bits_as_those_of_loaders(root: Path) -> None:
    given = {"dataset.cache": "ram", "policy.push_to_hub": "false"}
    flags = dict(word[2:].split("=", 1) for word in words(root, root, SEEN, given))
    setup = prepare(build(TrainConfig, {"policy.pretrained_backbone_weights": None, **flags}))
    samples: Any = setup.samples
    (placed,) = place_on_device([samples], CUDA)
    found, due = placed.batches(setup.order, range(9)), setup.batches(range(9))
    for one, other in zip(found, due, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            assert value.device.type == "cuda"
            assert (value.dtype, value.shape) == (other[key].dtype, other[key].shape)
            assert torch.equal(value, other[key])


@pytest.mark.parametrize("cache", ["ram", "device"])
def test_a_training_records_its_graph_and_ends(root: Path, tmp_path: Path, cache: str) -> None:
    given = {"dataset.cache": cache, "policy.pretrained_backbone_weights": "null"}
    assert main(["train", *words(root, tmp_path / "run", SEEN, given)]) == 0


@pytest.mark.parametrize("width", [60_000, 60_001])  # gathered as words, and as bytes
def test_frames_beyond_two_gigabytes_are_gathered(width: int) -> None:
    n = 2**31 // width + 100
    images = torch.zeros((n, width), dtype=torch.uint8, device=CUDA)
    images[-3:] = torch.arange(1, 4, dtype=torch.uint8, device=CUDA)[:, None]
    at = torch.tensor([n - 1, 0, n - 2, n - 3], device=CUDA)
    found = _as_words(images).index_select(0, at).view(torch.uint8)
    assert found[:, 0].tolist() == found[:, -1].tolist() == [3, 0, 2, 1]
