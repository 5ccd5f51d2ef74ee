"""Datasets against LeRobot (0.6.1, 0.4.4): what one writes the other reads, trains on and edits.

Needs LeRobot with its dataset and training extras in a venv of its own: set PROCTOR_LEROBOT_PYTHON
to that venv's python.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lerobot_frames import FEATURES, LENGTHS, TASKS, frame

from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "data" / "datasets"
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
)

TOP = "observation.images.top"
CAMERAS = [key for key, entry in FEATURES.items() if entry["dtype"] in ("video", "image")]
DELTAS: dict[str, list[float]] = {
    "observation.state": [-0.2, -0.1, 0.0],
    "action": [0.1 * i for i in range(8)],
    TOP: [-0.1, 0.0],
}
ONE_MOMENT = {"action": [0.0], TOP: [0.0], "frame_index": [-0.1]}
# Not "timestamp": asked for another one, LeRobot shows the other cameras at that time, too.
NAMES = ("video3ep", "image1ep", "ours", "theirs")
CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "windows": {"delta_timestamps": DELTAS},
    "one moment": {"delta_timestamps": ONE_MOMENT},
    "some episodes": {"episodes": [0, 2]},
    "some episodes, windows": {"episodes": [2, 1], "delta_timestamps": DELTAS},
    "the last episode, windows": {"episodes": [2], "delta_timestamps": DELTAS},
}


@cache
def our_av() -> str:
    """Return a folder that has our PyAV and nothing else, if LeRobot's Python can use it.

    Colours differ by some levels between versions of FFmpeg, whoever asks for them. The one is part
    of PyAV, whose wheels are of any Python: so both sides are given the same.
    """
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    package = Path(av.__file__).parent
    for part in (package, package.parent / "av.libs"):
        (folder / part.name).symlink_to(part)
    asked = [PYTHON, "-c", "import av; av.codecs_available"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    tried = subprocess.run(asked, capture_output=True, env=environment)
    assert tried.returncode == 0, f"LeRobot's Python cannot import our PyAV: {tried.stderr!r}"
    return str(folder)


def lerobot(*words: str | Path, path: str = "") -> None:
    """Run LeRobot's side."""
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([str(HERE), path]),
    }  # fmt: skip
    done = subprocess.run([PYTHON, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


def side(*words: str | Path, path: str = "") -> None:
    lerobot(HERE / "lerobot_datasets_side.py", *words, path=path)


@cache
def version() -> str:
    asked = [PYTHON, "-c", "from importlib.metadata import version; print(version('lerobot'))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def write_ours(root: Path, without: str = "") -> Path:
    features = {key: entry for key, entry in FEATURES.items() if key != without}
    writer = DatasetWriter.create(root, 10, features)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            made = {key: value for key, value in frame(episode, step).items() if key != without}
            writer.add_frame(made, task=TASKS[episode % 2])
        writer.end_episode()
    writer.close()
    return root


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The golden datasets, one that we wrote and one that LeRobot wrote, copied."""
    folder = tmp_path_factory.mktemp("datasets")
    for name in ("video3ep", "image1ep"):
        shutil.copytree(GOLDEN / name, folder / name)
    write_ours(folder / "ours")
    side("write", folder / "theirs")
    return {name: folder / name for name in NAMES}


@pytest.fixture(scope="module")
def theirs(roots: dict[str, Path]) -> dict[tuple[str, str], Path]:
    """What LeRobot reads, of every dataset and case, in one process: it takes long to start."""
    jobs, found = [], {}
    for name, case in itertools.product(NAMES, CASES):
        out = roots["ours"].parent / f"{name}-{case}.npz"
        options = _that_it_has(roots[name], CASES[case])
        jobs.append({"root": str(roots[name]), "out": str(out), "options": options})
        found[name, case] = out
    file = roots["ours"].parent / "jobs.json"
    file.write_text(json.dumps(jobs))
    side("items", file, path=our_av())
    return found


def read_items(file: Path) -> list[dict[str, Any]]:
    with np.load(file) as arrays:
        items: list[dict[str, Any]] = [{} for _ in range(int(arrays["length"]))]
        texts = json.loads(str(arrays["texts"]))
        for name in (*arrays.files, *texts):
            position, _, key = name.partition("/")
            if key:
                items[int(position)][key] = texts[name] if name in texts else arrays[name]
    return items


def as_lerobot(value: Any, key: str, dataset: Any) -> Any:
    """Return our value in LeRobot's layout: channels first, 0 to 1; floats 32, integers 64 bits."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if key in dataset.info.cameras:
        return np.moveaxis(array, -1, -3).astype(np.float32) / np.float32(255)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_items_are_lerobots_to_the_bit(
    name: str, case: str, roots: dict[str, Path], theirs: dict[tuple[str, str], Path]
) -> None:
    ours = open_dataset(roots[name], **_that_it_has(roots[name], CASES[case]))
    items = read_items(theirs[name, case])
    assert len(ours) == len(items)
    for position, expected in enumerate(items):
        item = ours[position]
        assert item.keys() == expected.keys()
        for key, value in expected.items():
            found = as_lerobot(item[key], key, ours)
            if isinstance(value, str):
                assert found == value, (position, key)
            else:
                np.testing.assert_array_equal(
                    found, value, err_msg=f"{position} {key}", strict=True
                )


def _that_it_has(root: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Leave out episodes and features that a dataset does not have."""
    info = json.loads((root / "meta/info.json").read_text())
    kept = dict(options)
    if "episodes" in kept:
        kept["episodes"] = [e for e in kept["episodes"] if e < info["total_episodes"]] or [0]
    if "delta_timestamps" in kept:
        deltas = kept["delta_timestamps"].items()
        kept["delta_timestamps"] = {k: v for k, v in deltas if k in info["features"]}
    return kept


def test_what_both_wrote_of_the_same_frames_is_the_same(roots: dict[str, Path]) -> None:
    ours, theirs = open_dataset(roots["ours"]), open_dataset(roots["theirs"])
    assert len(ours) == len(theirs) == sum(LENGTHS)
    for position in range(len(ours)):
        one, other = ours[position], theirs[position]
        assert one.keys() == other.keys()
        for key, value in one.items():
            if key in ours.info.video_keys:  # encoders of two versions of FFmpeg
                assert np.abs(value.astype(int) - other[key]).mean() < 10
            else:
                np.testing.assert_array_equal(value, other[key], err_msg=f"{position} {key}")


def test_the_statistics_are_lerobots(roots: dict[str, Path]) -> None:
    ours, theirs = open_dataset(roots["ours"]).stats, open_dataset(roots["theirs"]).stats
    assert ours.keys() == theirs.keys()
    for key, entry in theirs.items():
        for name, value in entry.items():
            if name.startswith("q"):  # ours are of the data, LeRobot's an envelope
                continue
            if name == "std" and version().startswith("0.4"):
                continue  # half or a third of the true one, there
            # It sums the squares of pixels in 32 bits: its deviations are off by 1e-4 of theirs.
            off = 3e-4 if key in CAMERAS else 1e-6
            np.testing.assert_allclose(
                ours[key][name], value, rtol=off, atol=1e-8, err_msg=f"{key} {name}"
            )


def write_senses(root: Path) -> Path:
    """Write a dataset with depth of both units and what was said."""
    axes = ["height", "width", "channels"]
    language = {"dtype": "language", "shape": [1], "names": None}
    features: dict[str, dict[str, Any]] = {
        "action": {"dtype": "float32", "shape": [2], "names": None},
        "language_persistent": language,
        "language_events": language,
    }
    for unit in ("m", "mm"):
        block = {"is_depth_map": True, "depth_unit": unit}
        entry = {"dtype": "video", "shape": [32, 48, 1], "names": axes, "info": block}
        features[f"observation.images.{unit}"] = entry
    plan = {"role": "assistant", "content": "go", "style": "plan", "timestamp": 0.0}
    call = {"role": "assistant", "tool_calls": [{"name": "say", "arguments": {"text": "go"}}]}
    writer = DatasetWriter.create(root, 10, features)
    for length in (3, 2):
        for step in range(length):
            metres = np.linspace(0.3, 2 + step, 32 * 48, dtype=np.float32).reshape(32, 48, 1)
            made = {
                "action": np.zeros(2, np.float32),
                "observation.images.m": metres,
                "observation.images.mm": (1000 * metres).astype(np.uint16),
                "language_persistent": [plan],
                "language_events": [call] if step == 1 else [],
            }
            writer.add_frame(made, task="go")
        writer.end_episode()
    writer.close()
    return root


def test_lerobot_reads_distances_and_sayings_that_we_wrote(tmp_path: Path) -> None:
    if version().startswith("0.4"):
        pytest.skip("LeRobot 0.4 knows neither depth nor language")
    root, out = write_senses(tmp_path / "ours"), tmp_path / "items.npz"
    jobs = [{"root": str(root), "out": str(out), "options": {}}]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    side("items", tmp_path / "jobs.json")  # its own PyAV: it is without loss, and ours lacks a name
    ours = open_dataset(root)
    for position, expected in enumerate(read_items(out)):
        item = ours[position]
        assert item.keys() == expected.keys()
        for key in ("language_persistent", "language_events"):
            assert item[key] == expected[key], position
        for key in ours.info.cameras:
            found = np.moveaxis(item[key], -1, -3)
            np.testing.assert_array_equal(found, expected[key], err_msg=f"{position} {key}")


def test_lerobot_edits_what_we_wrote_and_we_read_the_result(tmp_path: Path) -> None:
    # Its tools cannot handle matrices, whoever wrote them (pandas and the Array2D of `datasets`).
    root = write_ours(tmp_path / "ours", without="matrix")
    side("edit", root, tmp_path)
    source = open_dataset(root)
    deleted, merged = open_dataset(tmp_path / "deleted"), open_dataset(tmp_path / "merged")
    kept = [i for i in range(len(source)) if source[i]["episode_index"] != 1]
    assert _notes(deleted) == [_note(source[i]) for i in kept]
    assert _notes(merged) == _notes(source)


def _note(item: dict[str, Any]) -> tuple[Any, ...]:
    return item["note"], item["task"], item["action"].tolist(), item["double"].tolist()


def _notes(dataset: Any) -> list[tuple[Any, ...]]:
    return [_note(dataset[i]) for i in range(len(dataset))]


def test_lerobot_trains_on_what_we_wrote(roots: dict[str, Path], tmp_path: Path) -> None:
    flags = {
        "dataset.repo_id": "local/ours",
        "dataset.root": roots["ours"],
        "dataset.video_backend": "pyav",
        "policy.type": "act",
        "policy.device": "cpu",
        "policy.push_to_hub": "false",
        "policy.chunk_size": 4,
        "policy.n_action_steps": 4,
        "policy.dim_model": 32,
        "policy.n_heads": 2,
        "policy.dim_feedforward": 32,
        "policy.n_encoder_layers": 1,
        "policy.n_vae_encoder_layers": 1,
        "policy.pretrained_backbone_weights": "null",
        "batch_size": 2,
        "steps": 2,
        "num_workers": 0,
        "save_freq": 2,
        "wandb.enable": "false",
        "output_dir": tmp_path / "run",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    lerobot("-m", "lerobot.scripts.lerobot_train", *words)
    assert list((tmp_path / "run").rglob("model.safetensors"))
