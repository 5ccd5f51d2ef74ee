"""A training that keeps decoded frames ends with the bits of one that does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .making import FEATURES, SMALL_ACT, files_of, words

pytest.importorskip("torch")
pytest.importorskip("av")

from proctor.cli import main
from proctor.datasets.cache.folder import list_entries
from proctor.datasets.writer import DatasetWriter

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


def test_a_cache_changes_no_bit_of_what_is_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_pictures(tmp_path / "pictures")
    few = {"steps": 2, "batch_size": 2, "save_freq": 2, "num_workers": 0}
    few |= {"policy.pretrained_backbone_weights": "null"}
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
    wrong = words(root, tmp_path / "no", SMALL_ACT, few, {"dataset.cache_gb": 0})
    assert main(["train", *wrong]) == 2
    assert "--dataset.cache_gb must be above 0, got 0" in capsys.readouterr().err
