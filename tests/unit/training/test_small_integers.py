"""uint8 features that are not images."""

from __future__ import annotations

import numpy as np
import pytest

from .builders import FEATURES, RUN, SMALL_DIFFUSION, words

pytest.importorskip("torch")

from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.datasets.writer import DatasetWriter
from proctor.features import STATE
from proctor.training.setup import prepare


def test_small_integers_are_numbers_and_no_pictures(tmp_path):
    features = FEATURES | {STATE: {"dtype": "uint8", "shape": [2], "names": None}}
    with DatasetWriter.create(tmp_path / "d", fps=10, features=features) as writer:
        for step in range(6):
            frame = {key: np.zeros(entry["shape"], "f4") for key, entry in features.items()}
            writer.add_frame(frame | {STATE: np.array([200 + step, 7], np.uint8)}, "task")
        writer.end_episode()
    asked = words(tmp_path / "d", tmp_path / "run", SMALL_DIFFUSION, RUN)
    setup = prepare(build(TrainConfig, dict(word[2:].split("=", 1) for word in asked)))
    batch = setup.samples.__getitems__([3])
    assert batch[STATE].tolist() == [[[202.0, 7.0], [203.0, 7.0]]]
