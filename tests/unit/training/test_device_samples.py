"""Samples on the training device (--dataset.cache=device) have the bits of loaded ones."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from .builders import SMALL_ACT, SMALL_DIFFUSION, SMALL_LANGUAGE_ACT, files_of, words

pytest.importorskip("torch")
pytest.importorskip("av")

import torch

import proctor
from proctor.cli import main
from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.datasets.writer import DatasetWriter
from proctor.errors import UsageError
from proctor.policies.act import network
from proctor.policies.blocks.resnet import OUT_CHANNELS
from proctor.training.data import device_samples
from proctor.training.data.device_samples import place_on_device
from proctor.training.setup import TrainingSetup, prepare

CPU = torch.device("cpu")
CAMERA = "observation.images.top"
LENGTHS = (9, 7, 8, 5)
TASKS = ("Open a drawer", "Push a button")
ROWS = {"batch_size": 5, "num_workers": 0, "steps": 4, "save_freq": 2, "eval_steps": 2}
"""The last batch of an epoch is smaller."""
NO_WEIGHTS = {"policy.pretrained_backbone_weights": "null"}
RAM, DEVICE = {"dataset.cache": "ram"}, {"dataset.cache": "device"}


def write_episodes(root: Path, dtype: str) -> Path:
    vector = {"dtype": "float32", "shape": [2], "names": None}
    image = {"dtype": dtype, "shape": [32, 32, 3], "names": ["height", "width", "channels"]}
    features = {"observation.state": vector, "action": vector, CAMERA: image}
    writer = DatasetWriter.create(root, fps=10, features=features)
    rng = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        for _ in range(length):
            frame = {
                "observation.state": rng.normal(size=2).astype(np.float32),
                "action": rng.normal(size=2).astype(np.float32),
                CAMERA: rng.integers(0, 255, (32, 32, 3)).astype(np.uint8),
            }
            writer.add_frame(frame, TASKS[episode % 2])
        writer.end_episode()
    writer.close()
    return root


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    return {dtype: write_episodes(folder / dtype, dtype) for dtype in ("video", "image")}


@pytest.fixture(autouse=True)
def _small_eye(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an image encoder of 2,000 weights instead of ResNet's 11 million."""
    from torch import nn

    def eye(*_: Any, **__: Any) -> nn.Module:
        return nn.Conv2d(3, OUT_CHANNELS, kernel_size=1, stride=8)

    monkeypatch.setattr(network, "ResNet", eye)


def a_setup(root: Path, *settings: dict[str, Any]) -> TrainingSetup:
    rest = {"dataset.eval_split": 0.3, "policy.push_to_hub": "false"}
    asked = dict(word[2:].split("=", 1) for word in words(root, root, ROWS, rest, *settings))
    return prepare(build(TrainConfig, {"policy.pretrained_backbone_weights": None} | asked))


def check_equal(found: list[dict[str, Any]], due: list[dict[str, Any]]) -> None:
    assert len(found) == len(due) > 0
    for one, other in zip(found, due, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            assert (value.dtype, value.shape) == (other[key].dtype, other[key].shape)
            assert torch.equal(value, other[key])


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        ("video", SMALL_ACT | {"dataset.episodes": "[0,1,2]"}),
        ("video", SMALL_DIFFUSION | {"dataset.image_size": "[16,24]"}),
        ("image", SMALL_DIFFUSION | {"policy.n_obs_steps": 3}),
        ("image", SMALL_LANGUAGE_ACT | {"policy.crop": "[6,8,13,15]", "policy.random_shift": 2}),
    ],
)
def test_batches_have_the_same_bits_as_those_of_loaders(
    roots: dict[str, Path], dtype: str, settings: dict[str, Any]
) -> None:
    setup = a_setup(roots[dtype], settings, RAM)
    assert setup.held_out is not None
    samples, held_out = place_on_device([setup.samples, setup.held_out[0]], CPU)
    steps = range(2, 2 * setup.order.batches_per_epoch + 1)  # from the middle of an epoch
    due, found = list(setup.batches(steps)), list(samples.batches(setup.order, steps))
    check_equal(found, due)
    assert len({len(batch["action"]) for batch in due}) == 2
    order = setup.held_out[1]
    validated = range(order.batches_per_epoch)
    check_equal(list(held_out.batches(order, validated)), list(setup.validation_batches()))
    position = int(setup.order.frames[-1])
    check_equal([samples.repeated(position, 3)], [setup.samples.repeated(position, 3)])


def test_only_the_region_that_the_network_reads_is_on_the_device(roots: dict[str, Path]) -> None:
    crop = {"policy.crop": "[6,8,13,15]", "policy.random_shift": 2}
    setup = a_setup(roots["image"], SMALL_LANGUAGE_ACT, crop, RAM)
    (samples,) = place_on_device([setup.samples], CPU)
    frames = len(setup.samples.dataset)
    assert samples.nbytes == frames * (17 * 19 * 3 + 2 * 4 + 2 * 4)
    assert samples.decoded_nbytes == frames * 32 * 32 * 3


def test_decoded_images_are_freed_when_they_are_on_the_device(roots: dict[str, Path]) -> None:
    setup = a_setup(roots["image"], SMALL_ACT, RAM)
    loaded = setup.samples
    dataset = weakref.ref(loaded.dataset)
    (samples,) = place_on_device([loaded], CPU)
    del setup, loaded
    told: list[tuple[str, int, int]] = []
    samples.fill_cache(lambda *said: told.append(said))
    assert dataset() is None
    assert told[-1][0] == CAMERA
    assert told[-1][1] == told[-1][2]
    samples.fill_cache(lambda *_: pytest.fail("filled twice"))


def test_a_training_ends_with_the_bits_of_one_with_loaders_also_if_it_is_resumed(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    same = SMALL_ACT | NO_WEIGHTS | ROWS | {"dataset.eval_split": 0.3}
    assert main(["train", *words(roots["video"], tmp_path / "ram", same, RAM)]) == 0
    half = words(roots["video"], tmp_path / "device", same, DEVICE, {"steps": 2})
    assert main(["train", *half]) == 0
    assert main(["train", "--resume", f"--output_dir={tmp_path / 'device'}", "--steps=4"]) == 0
    ram, device = (tmp_path / name / "checkpoints/000004" for name in ("ram", "device"))
    assert files_of(device) == files_of(ram)
    ram_losses, device_losses = (validation_losses(tmp_path / kind) for kind in ("ram", "device"))
    assert device_losses == ram_losses
    assert len(ram_losses) == 2


def validation_losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").open()]
    return [line["loss"] for line in lines if line["kind"] == "held_out"]


def test_what_does_not_fit_is_refused(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_samples, "usable_memory_bytes", lambda: 100_000)
    with pytest.raises(UsageError) as refused:
        a_setup(roots["image"], SMALL_ACT, DEVICE)
    assert refused.value.code == "cache.too-small"


@pytest.mark.parametrize(("free", "fits"), [(10**5, True), (10**5 - 1, False)])
def test_a_fifth_of_a_gpu_is_kept_for_the_network(
    monkeypatch: pytest.MonkeyPatch, free: int, fits: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * 10**5))
    samples: Any = SimpleNamespace(nbytes=6 * 10**4, decoded_nbytes=0, dataset_name="demos")
    if fits:
        device_samples._check_memory([samples], torch.device("cuda"))
        return
    with pytest.raises(UsageError) as refused:
        device_samples._check_memory([samples], torch.device("cuda"))
    assert refused.value.code == "cache.too-small"


def test_prompts_with_observations_are_refused() -> None:
    prompts: Any = SimpleNamespace(
        instruction_encoder=SimpleNamespace(needs=("observation.state",))
    )
    with pytest.raises(UsageError) as refused:
        place_on_device([prompts], CPU)
    assert refused.value.code == "flag.conflict"


def test_a_dataset_that_is_only_read_has_no_device(roots: dict[str, Path]) -> None:
    with pytest.raises(UsageError) as refused:
        proctor.load_dataset(roots["image"], cache="device")
    assert refused.value.code == "flag.invalid-value"
