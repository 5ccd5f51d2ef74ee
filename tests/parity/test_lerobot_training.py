"""Against LeRobot's own training (0.6.1): the same losses, and each resumes the other's runs.

Needs LeRobot in a venv of its own: set PROCTOR_LEROBOT_PYTHON to that venv's python.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")
from safetensors.torch import save_file  # noqa: E402
from tests.unit.training.builders import FEATURES, SMALL_ACT, SMALL_DIFFUSION, write_numbers  # noqa: E402

from proctor.cli import main  # noqa: E402
from proctor.datasets.writer import DatasetWriter  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.training.data.sampler import BatchOrder, usable_frames  # noqa: E402
from proctor.training.rng import RngStreams  # noqa: E402

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
)
STEPS, BATCH = 20, 4
LENGTHS = (19, 17, 18)
RUN = {"steps": STEPS, "batch_size": BATCH, "log_freq": 1, "save_freq": 10, "num_workers": 0}
FAMILIES = {"act": SMALL_ACT | {"policy.dropout": 0.0}, "diffusion": SMALL_DIFFUSION}
CAMERA, SIZE = "observation.images.top", 64
SEEING = {"policy.pretrained_backbone_weights": "null"}
RATE = 1e-3
CAMERAS = {
    "act": FAMILIES["act"] | SEEING | {"policy.optimizer_lr_backbone": RATE},
    "diffusion": FAMILIES["diffusion"] | SEEING,
}
# With the presets' Adam the losses part sooner (docs/measurements.md): its first steps have the
# size of the rate however small a gradient is.
PLAIN = {"use_policy_training_preset": "false", "optimizer.type": "sgd", "optimizer.lr": RATE}
PLAIN |= {"scheduler.type": "constant_with_warmup", "scheduler.num_warmup_steps": 0}


@pytest.fixture(autouse=True)
def one_thread():
    """As on LeRobot's side: two threads add up in another order, and differences grow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_pictures(root: Path) -> Path:
    """Write episodes of a state, an action and a small camera with a pattern that moves.

    As PNG: colours of a video depend on the FFmpeg that decodes it, and LeRobot asks for another.
    """
    picture = {"dtype": "image", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    features = {k: FEATURES[k] for k in ("observation.state", "action")} | {CAMERA: picture}
    writer = DatasetWriter.create(root, fps=10, features=features)
    down, right = np.mgrid[:SIZE, :SIZE]
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            at = np.arange(2) + step / 5 + episode
            waves = [
                np.sin((down * a + right * b) / 9 + step / 3) for a, b in ((1, 2), (2, 1), (3, 1))
            ]
            seen = (127 + 120 * np.stack(waves, -1)).astype(np.uint8)
            numbers = {"observation.state": np.sin(at), "action": np.sin(at + 1)}
            frame = {key: value.astype(np.float32) for key, value in numbers.items()}
            writer.add_frame(frame | {CAMERA: seen}, "look")
        writer.end_episode()
    writer.close()
    return root


def ours(*settings: dict) -> None:
    joined: dict = {}
    for some in settings:
        joined |= some
    assert main(["train", *(f"--{name}={value}" for name, value in joined.items())]) == 0


def theirs(tmp_path: Path, noise: Path | None, *settings: dict) -> list[float]:
    """Run LeRobot's training and return the loss of every step."""
    joined = {"policy.push_to_hub": "false", "policy.device": "cpu"}
    for some in settings:
        joined |= some
    flags = [f"--{name}={value}" for name, value in joined.items()]
    words = [PYTHON, HERE / "lerobot_training_side.py", tmp_path / "losses.json", noise or "-"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*words, *flags], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((tmp_path / "losses.json").read_text())


def losses_of(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").open()]


@pytest.fixture
def data(tmp_path):
    root = write_numbers(tmp_path / "numbers", LENGTHS)
    return {"dataset.repo_id": "someone/numbers", "dataset.root": root}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_losses_are_lerobots(data, tmp_path, family):
    compare_losses(data, tmp_path, family, FAMILIES[family])


@pytest.mark.parametrize("family", CAMERAS)
def test_the_first_losses_of_policies_with_a_camera_are_lerobots(tmp_path, family):
    root = write_pictures(tmp_path / "pictures")
    data = {"dataset.repo_id": "someone/pictures", "dataset.root": root}
    compare_losses(data, tmp_path, f"{family} with a camera", CAMERAS[family], PLAIN)


def test_the_first_losses_of_act_with_a_camera_by_its_own_adam_are_lerobots(tmp_path):
    root = write_pictures(tmp_path / "pictures")
    data = {"dataset.repo_id": "someone/pictures", "dataset.root": root}
    compare_losses(data, tmp_path, "act with a camera, Adam", FAMILIES["act"] | SEEING)


def compare_losses(
    data: dict, tmp_path: Path, name: str, family: dict, how: dict | None = None
) -> None:
    ours(data, family, RUN, {"steps": 1, "output_dir": tmp_path / "start"})
    start = tmp_path / "start/checkpoints/last/pretrained_model"
    parts = read_checkpoint(start)
    frames = usable_frames(LENGTHS, parts.config.samples().drop_last)
    rows = [len(batch) for batch in BatchOrder(frames, BATCH, seed=1000).batches(0, STEPS)]
    noise = {
        f"{step}/{name}": value
        for step in range(STEPS)
        for name, value in RngStreams(1000).loss_noise(parts.network, step, rows[step]).items()
    }
    save_file(noise, tmp_path / "noise.safetensors")
    begin = {"policy.path": start, "policy.device": "cpu"} | (how or {})
    ours(data, RUN, begin, {"output_dir": tmp_path / "ours"})
    found = theirs(
        tmp_path, tmp_path / "noise.safetensors", data, RUN, begin,
        {"output_dir": tmp_path / "theirs"},
    )  # fmt: skip
    expected, mine = np.array(found), np.array(losses_of(tmp_path / "ours"))
    print(f"{name}: largest relative difference {np.max(np.abs(mine / expected - 1)):.1e}")
    np.testing.assert_allclose(mine, expected, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_goes_on_with_the_others_run(data, tmp_path, family):
    folders = {name: tmp_path / name for name in ("ours", "theirs")}
    short = {"steps": 10}
    ours(data, FAMILIES[family], RUN, short, {"output_dir": folders["ours"]})
    place = {"output_dir": folders["theirs"]}
    by_lerobot = theirs(tmp_path, None, data, FAMILIES[family], RUN, short, place)
    configs = {
        name: folder / "checkpoints/last/pretrained_model/train_config.json"
        for name, folder in folders.items()
    }
    more = {"resume": "true", "steps": 15}
    by_them = theirs(tmp_path, None, {"config_path": configs["ours"]}, more)
    ours({"config_path": configs["theirs"]}, more)
    by_us = losses_of(folders["theirs"])
    for found, before in ((by_them, losses_of(folders["ours"])), (by_us, by_lerobot)):
        assert len(found) == 5
        assert np.isfinite(found).all()
        assert np.mean(found) < 1.5 * np.mean(before)
    step = json.loads(
        (folders["ours"] / "checkpoints/last/training_state/training_step.json").read_text()
    )
    assert step["step"] == 15
