"""Fine-tuning with ``--rename_map``: each input is normalised by its own statistics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .builders import FEATURES, RUN, SMALL_ACT, words, write_numbers

pytest.importorskip("torch")

from safetensors.numpy import load_file

from proctor.cli import main
from proctor.datasets.format.tables import read_stats, write_stats
from proctor.datasets.writer import DatasetWriter

LAST = "checkpoints/last/pretrained_model"
NUMBER = {"dtype": "float32", "shape": [2], "names": None}
PICTURE = {"dtype": "image", "shape": [20, 20, 3], "names": ["height", "width", "channels"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    data = write_numbers(folder / "data")
    short = {"steps": 2, "save_freq": 2}
    assert main(["train", *words(data, folder / "run", SMALL_ACT, RUN, short)]) == 0
    return folder / "run" / LAST


def two_states(root: Path) -> Path:
    """Write a dataset with joints, around 100, and with an ``observation.state``, around 0."""
    features = {"observation.joints": NUMBER, **FEATURES}
    drawn = np.random.default_rng(0)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for _ in range(3):
            for _ in range(8):
                frame = {
                    key: drawn.normal(size=entry["shape"]).astype(np.float32)
                    for key, entry in features.items()
                }
                frame["observation.joints"] = 100 + 10 * frame["observation.joints"]
                writer.add_frame(frame, "a task")
            writer.end_episode()
    return root


def fine_tuned(base: Path, data: Path, run: Path, renames: dict, *more: str, expect: int = 0):
    how = {"policy.path": base, "policy.device": "cpu", "rename_map": json.dumps(renames)}
    settings = words(data, run, how, RUN, {"steps": 2, "save_freq": 2})
    assert main(["train", *settings, *more]) == expect
    return run / LAST


def normalizer_stats(checkpoint: Path) -> dict[str, np.ndarray]:
    (file,) = checkpoint.glob("policy_preprocessor_*_normalizer_processor.safetensors")
    return load_file(file)


def test_a_renamed_input_is_normalised_by_its_own_statistics(base, tmp_path):
    data = two_states(tmp_path / "data")
    renames = {"observation.joints": "observation.state"}
    stats = normalizer_stats(fine_tuned(base, data, tmp_path / "run", renames))
    expected = read_stats(data)
    for name in ("mean", "std", "min", "max", "q01", "q99"):
        joints = expected["observation.joints"][name].astype(np.float32)
        assert stats[f"observation.state.{name}"].tolist() == joints.tolist()
    assert not any(key.startswith("observation.joints") for key in stats)


def test_inputs_that_change_places_take_their_statistics_along(base, tmp_path):
    features = FEATURES | {"observation.environment_state": NUMBER}
    data = write_numbers(tmp_path / "data", features=features)
    how = {"policy.device": "cpu", "steps": 2, "save_freq": 2}
    assert main(["train", *words(data, tmp_path / "first", SMALL_ACT, RUN, how)]) == 0
    swapped = {
        "observation.state": "observation.environment_state",
        "observation.environment_state": "observation.state",
    }
    stats = normalizer_stats(fine_tuned(tmp_path / "first" / LAST, data, tmp_path / "run", swapped))
    expected = read_stats(data)
    for old, new in swapped.items():
        assert np.allclose(stats[f"{new}.mean"], expected[old]["mean"])


def test_statistics_of_another_feature_do_not_stand_in_for_missing_ones(base, tmp_path, capsys):
    data = two_states(tmp_path / "data")
    stats = read_stats(data)
    del stats["observation.joints"]
    write_stats(data, stats)
    renames = {"observation.joints": "observation.state"}
    fine_tuned(base, data, tmp_path / "run", renames, expect=2)
    assert "observation.state" in capsys.readouterr().err


def test_two_observations_of_one_name_are_refused(base, tmp_path, capsys):
    data = two_states(tmp_path / "data")
    renames = {"observation.joints": "observation.state", "observation.state": "observation.state"}
    fine_tuned(base, data, tmp_path / "run", renames, expect=2)
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_is_renamed_to_action(base, tmp_path):
    data = two_states(tmp_path / "data")
    fine_tuned(base, data, tmp_path / "run", {"observation.joints": "action"}, expect=2)


def test_a_renamed_camera_is_normalised_by_its_own_statistics(tmp_path):
    """A camera that is left out has the name that another camera is given."""
    top, front = "observation.images.top", "observation.images.front"
    features = {"observation.state": NUMBER, "action": NUMBER, top: PICTURE}
    how = SMALL_ACT | {"policy.pretrained_backbone_weights": "null", "steps": 2, "save_freq": 2}
    one = _pictures(tmp_path / "one", features)
    assert main(["train", *words(one, tmp_path / "first", how, RUN, {"steps": 2})]) == 0
    two = _pictures(tmp_path / "two", features | {front: PICTURE})
    stats = normalizer_stats(
        fine_tuned(
            tmp_path / "first" / LAST,
            two,
            tmp_path / "run",
            {front: top},
            "--dataset.use_imagenet_stats=false",
        )
    )
    assert np.allclose(stats[f"{top}.mean"], read_stats(two)[front]["mean"])


def _pictures(root: Path, features: dict) -> Path:
    drawn = np.random.default_rng(0)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for _ in range(2):
            for _ in range(6):
                frame = {
                    key: drawn.normal(size=2).astype(np.float32)
                    for key in ("observation.state", "action")
                }
                for number, key in enumerate(k for k in features if "images" in k):
                    shade = drawn.integers(100 * number, 100 * number + 50, (20, 20, 3))
                    frame[key] = shade.astype(np.uint8)
                writer.add_frame(frame, "a task")
            writer.end_episode()
    return root
