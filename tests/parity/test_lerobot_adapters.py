"""Adapters against LeRobot's own (0.6.1 with peft): each goes on with and plays the other's.

Needs LeRobot and peft in a venv of their own: set PROCTOR_LEROBOT_PYTHON to that venv's python.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.parity.test_lerobot_training import LENGTHS, RUN, losses_of, ours, theirs

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")
from safetensors.torch import load_file, save_file  # noqa: E402
from tests.unit.training.builders import (  # noqa: E402
    SMALL_ACT,
    SMALL_DIFFUSION,
    needs_peft,
    write_numbers,
)

from proctor.policies.base import Batch, Query  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.policies.runtime.chunk_policy import ChunkPolicy  # noqa: E402
from proctor.types import EpisodeSpec, Task  # noqa: E402

needs_peft()
HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
LAST = "checkpoints/last/pretrained_model"


def has_peft() -> bool:
    if not Path(PYTHON).is_file():
        return False
    found = [PYTHON, "-c", "import importlib.util as u; exit(not u.find_spec('peft'))"]
    return subprocess.run(found, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not has_peft(), reason="LeRobot with peft not installed (set PROCTOR_LEROBOT_PYTHON)"
)
FAMILIES = {
    "act": (SMALL_ACT | {"policy.dropout": 0.0}, '["self_attn","linear1"]', '["action_head"]'),
    "diffusion": (
        SMALL_DIFFUSION | {"policy.num_train_timesteps": 10},
        r'"diffusion\\.unet\\..*(conv1\\.block\\.0|cond_encoder\\.1)"',
        "null",
    ),
}


def their_chunk(folder: Path, inputs: Path, out: Path) -> np.ndarray:
    words = [PYTHON, HERE / "lerobot_adapter_side.py", folder, inputs, out]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out)["chunk"].numpy()


def our_chunk(folder: Path, inputs: dict) -> np.ndarray:
    parts = read_checkpoint(folder)
    policy = ChunkPolicy(parts, "cpu")
    if "noise" in inputs:
        policy._draw = lambda query: {"noise": inputs["noise"][query.spec.index].numpy()}
    specs = [EpisodeSpec(Task("s", 0, "t", "t", 9, 9), i, 0) for i in range(2)]
    queries = [Query(spec, 0, policy.new_episode(spec)) for spec in specs]
    seen = {key: inputs[key].numpy() for key in policy.spec.inputs}
    return policy.act(Batch(queries, seen))


def inputs_of(folder: Path) -> dict:
    parts = read_checkpoint(folder)
    rows = {
        key: torch.rand(2, parts.config.n_obs_steps, *feature.shape)
        for key, feature in parts.config.input_features.items()
    }
    rows |= {name: torch.randn(2, *shape) for name, (_, shape) in parts.network.draws.items()}
    return rows


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_goes_on_with_the_others_adapter_and_plays_it_alike(tmp_path, family):
    root = write_numbers(tmp_path / "numbers", LENGTHS)
    data = {"dataset.repo_id": "someone/numbers", "dataset.root": root}
    settings, targets, whole = FAMILIES[family]
    ours(data, settings, RUN, {"steps": 2, "save_freq": 2, "output_dir": tmp_path / "base"})
    adapts = {
        "policy.path": (tmp_path / "base" / LAST).resolve(),
        "policy.device": "cpu",
        "peft.r": 4,
        "peft.method_type": "LORA",
        "peft.target_modules": targets,
        "peft.full_training_modules": whole,
    }
    plain = adapts | {"peft.target_modules": targets.strip('"').replace("\\\\", "\\")}
    folders = {name: tmp_path / name for name in ("ours", "theirs")}
    short = {"steps": 10, "batch_size": 4}
    ours(data, RUN, plain, short, {"output_dir": folders["ours"]})
    by_lerobot = theirs(tmp_path, None, data, RUN, adapts, short, {"output_dir": folders["theirs"]})
    inputs = inputs_of(folders["ours"] / LAST)
    save_file(inputs, tmp_path / "inputs.safetensors")
    for name, folder in folders.items():
        found = our_chunk(folder / LAST, inputs)
        expected = their_chunk(
            folder / LAST, tmp_path / "inputs.safetensors", tmp_path / name / "c"
        )
        largest = np.abs(found - expected[:, : found.shape[1]]).max()
        print(f"{family}, an adapter of {name}: largest difference {largest:.1e}")
        np.testing.assert_allclose(found, expected[:, : found.shape[1]], atol=1e-5)
    tensors = [load_file(f / LAST / "adapter_model.safetensors") for f in folders.values()]
    assert {k: v.shape for k, v in tensors[0].items()} == {
        k: v.shape for k, v in tensors[1].items()
    }
    configs = {name: folder / LAST / "train_config.json" for name, folder in folders.items()}
    more = {"resume": "true", "steps": 15}
    by_them = theirs(tmp_path, None, {"config_path": configs["ours"]}, more)
    ours({"config_path": configs["theirs"]}, more)
    for found, before in (
        (by_them, losses_of(folders["ours"])),
        (losses_of(folders["theirs"]), by_lerobot),
    ):
        assert len(found) == 5
        assert np.isfinite(found).all()
        assert np.mean(found) < 1.5 * np.mean(before)
