"""A training with a frame cache ends with the same bits as one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .builders import FEATURES, SMALL_ACT, files_of, words

pytest.importorskip("torch")
pytest.importorskip("av")

from proctor.cli import main
from proctor.datasets.cache.folder import list_entries
from proctor.datasets.reading import staleness
from proctor.datasets.writer import DatasetWriter
from proctor.policies.act import network
from proctor.policies.blocks.resnet import OUT_CHANNELS
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint

CAMERA = "observation.images.top"


def write_pictures(root: Path) -> Path:
    picture = {"dtype": "video", "shape": [32, 32, 3], "names": ["height", "width", "channels"]}
    features = {k: FEATURES[k] for k in ("observation.state", "action")} | {CAMERA: picture}
    writer = DatasetWriter.create(root, fps=10, features=features)
    rng = np.random.default_rng(0)
    for _ in range(2):
        for _ in range(6):
            frame = {
                "observation.state": rng.normal(size=2).astype(np.float32),
                "action": rng.normal(size=2).astype(np.float32),
                CAMERA: rng.integers(0, 255, (32, 32, 3)).astype(np.uint8),
            }
            writer.add_frame(frame, "look")
        writer.end_episode()
    writer.close()
    return root


FEW = {"steps": 2, "batch_size": 2, "save_freq": 2, "num_workers": 0}
FEW |= {"policy.pretrained_backbone_weights": "null"}


@pytest.fixture(autouse=True)
def _small_eye(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an image encoder of 2,000 weights instead of ResNet's 11 million."""
    from torch import nn

    def eye(*_: Any, **__: Any) -> nn.Module:
        return nn.Conv2d(3, OUT_CHANNELS, kernel_size=1, stride=8)

    monkeypatch.setattr(network, "ResNet", eye)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / "pictures")


def test_a_cache_of_small_pictures_changes_no_bit_of_what_is_learnt(
    root: Path, tmp_path: Path
) -> None:
    few = FEW | {"dataset.image_size": "[16,24]"}
    learnt = {}
    for kind in ("off", "disk"):
        cache = {"dataset.cache": kind, "dataset.cache_dir": tmp_path / "cache"}
        assert main(["train", *words(root, tmp_path / kind, SMALL_ACT, few, cache)]) == 0
        learnt[kind] = files_of(tmp_path / kind / "checkpoints/000002")
    assert learnt["disk"] == learnt["off"]
    (entry,) = list_entries(tmp_path / "cache")
    assert (entry.card.camera, entry.card.frames) == (CAMERA, 12)
    said = (tmp_path / "disk/checkpoints/000002/pretrained_model/train_config.json").read_text()
    assert '"cache' not in said  # LeRobot refuses what it does not know
    assert entry.card.shape == (16, 24, 3)
    policy = read_checkpoint(tmp_path / "disk/checkpoints/last/pretrained_model").config
    assert policy.input_features[CAMERA].shape == (16, 24, 3)
    again = ["--resume", f"--output_dir={tmp_path / 'disk'}", "--steps=3"]
    again.append(f"--dataset.cache_dir={tmp_path / 'cache'}")
    assert main(["train", *again]) == 0  # at the size it was begun with


def test_a_policy_of_another_size_is_refused_with_the_flag_that_scales(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = FEW | {"dataset.image_size": "[16,24]", "steps": 1}
    assert main(["train", *words(root, tmp_path / "small", SMALL_ACT, small)]) == 0
    begin = {"policy.path": tmp_path / "small/checkpoints/last/pretrained_model"}
    plain = {"steps": 1, "batch_size": 2, "num_workers": 0} | begin
    capsys.readouterr()
    assert main(["train", *words(root, tmp_path / "on", plain)]) == 2
    assert "--dataset.image_size=[16,24]" in capsys.readouterr().err
    scaled = plain | {"dataset.image_size": "[16,24]", "policy.device": "cpu"}
    assert main(["train", *words(root, tmp_path / "on", scaled)]) == 0


@pytest.mark.parametrize(
    ("name", "value"), [("cache_gb", "0"), ("image_size", "[128]"), ("image_size", "[0,128]")]
)
def test_sizes_that_are_none_are_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    wrong = words(root, tmp_path / "no", SMALL_ACT, FEW, {f"dataset.{name}": value})
    assert main(["train", *wrong]) == 2
    assert f"--dataset.{name}" in capsys.readouterr().err


def test_a_training_reads_the_metadata_of_its_dataset_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    untouched = staleness.read_episodes

    def read_episodes(*given: Any) -> Any:
        opened.append(given)
        return untouched(*given)

    monkeypatch.setattr(staleness, "read_episodes", read_episodes)
    split = {"dataset.eval_split": 0.5, "eval_steps": 2, "steps": 2}
    assert main(["train", *words(root, tmp_path / "run", SMALL_ACT, FEW, split)]) == 0
    assert len(opened) == 1


def test_a_finished_training_that_is_resumed_decodes_nothing_and_starts_no_loaders(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words(root, tmp_path / "run", SMALL_ACT, FEW)]) == 0
    before = files_of(tmp_path / "run/checkpoints/000002")
    monkeypatch.setattr("proctor.training.data.loading.DataLoader", None)
    monkeypatch.setattr("proctor.training.setup.TrainingSetup.fill_caches", None)
    again = ["--resume", f"--output_dir={tmp_path / 'run'}", "--num_workers=2"]
    assert main(["train", *again, "--dataset.cache=ram"]) == 0
    assert "step 2: nothing is left to train" in capfd.readouterr().err
    assert files_of(tmp_path / "run/checkpoints/000002") == before
