"""Training on a streamed dataset: same samples, exact resume, no files left."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch

import numpy as np
import pytest

from .builders import RUN, SMALL_ACT, SMALL_DIFFUSION, files_of, words

pytest.importorskip("torch")

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.features import ACTION
from proctor.training.setup import TrainingSetup, prepare

STREAMED = {"dataset.streaming": "true", "num_workers": 0}


def a_setup(numbers, settings: dict) -> TrainingSetup:
    asked = words(numbers, numbers, SMALL_DIFFUSION, RUN, settings, {"policy.push_to_hub": "false"})
    return prepare(build(TrainConfig, dict(word[2:].split("=", 1) for word in asked)))


def test_an_epoch_of_a_stream_has_every_usable_frame_once_with_what_belongs_to_it(numbers):
    whole, streamed = (a_setup(numbers, some) for some in ({}, STREAMED))
    order = streamed.order.epoch(0)
    assert sorted(order) == sorted(whole.order.frames) == sorted(whole.order.epoch(0))
    assert order.tolist() != streamed.order.epoch(1).tolist()
    one, other = (setup.samples.__getitems__(order[:5]) for setup in (whole, streamed))
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_array_equal(value, other[key])
    assert one[ACTION].shape == (5, 8, 2)


def test_a_resumed_training_on_a_stream_ends_with_the_bits_of_an_undisturbed_one(numbers, tmp_path):
    settings = (SMALL_ACT, RUN, STREAMED, {"dataset.eval_split": 0.3, "eval_steps": 4})
    assert main(["train", *words(numbers, tmp_path / "whole", *settings)]) == 0
    parts = words(numbers, tmp_path / "parts", *settings, {"steps": 4})
    assert main(["train", *parts]) == 0
    assert main(["train", "--resume", f"--output_dir={tmp_path / 'parts'}", "--steps=8"]) == 0
    whole, parts = (tmp_path / name / "checkpoints/000008" for name in ("whole", "parts"))
    assert files_of(parts) == files_of(whole)
    told = json.loads((whole / "pretrained_model/train_config.json").read_text())
    assert told["dataset"]["streaming"] is True


def test_what_comes_from_the_hub_is_gone_when_the_training_ends(numbers, tmp_path, monkeypatch):
    asked = []

    def download(repo, revision, files, place):
        for path in numbers.rglob("*"):
            name = path.relative_to(numbers).as_posix()
            if path.is_file() and any(fnmatch(name, some) for some in files):
                asked.append(name)
                (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place.folder / name)
        return place.folder

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("proctor.datasets.source.download", download)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    hub = {"dataset.repo_id": "me/demos", "dataset.revision": "v3.0", "steps": 2}
    settings = words(numbers, tmp_path / "run", SMALL_ACT, RUN, STREAMED, hub)
    assert main(["train", *(w for w in settings if not w.startswith("--dataset.root"))]) == 0
    assert "data/chunk-000/file-000.parquet" in asked
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"dataset.cache": "ram"}, "--dataset.streaming"),
        ({"dataset.balance_tasks": "true"}, "--dataset.balance_tasks"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(numbers, tmp_path, capsys, settings, told):
    asked = words(numbers, tmp_path / "run", SMALL_ACT, RUN, STREAMED, settings)
    assert main(["train", *asked]) == 2
    assert told in capsys.readouterr().err
