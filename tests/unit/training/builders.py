"""Builders of a small dataset and a small policy, whose training step takes milliseconds.

The features have the sizes of the fake benchmark, so that trained policies can be evaluated on it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")
pytest.importorskip("pyarrow", reason="datasets need pyarrow: pip install 'proctor[dataset]'")

from proctor.datasets.writer import DatasetWriter
from proctor.system.files import sha256_of

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": [2], "names": None},
    "observation.environment_state": {"dtype": "float32", "shape": [4], "names": None},
    "action": {"dtype": "float32", "shape": [2], "names": None},
}
SMALL_ACT = {
    "policy.type": "act",
    "policy.chunk_size": 4,
    "policy.n_action_steps": 4,
    "policy.dim_model": 16,
    "policy.n_heads": 2,
    "policy.dim_feedforward": 24,
    "policy.n_encoder_layers": 1,
    "policy.n_vae_encoder_layers": 1,
    "policy.latent_dim": 4,
    "policy.device": "cpu",
}
SMALL_LANGUAGE_ACT = {
    "policy.type": "language_act",
    "policy.chunk_size": 4,
    "policy.n_action_steps": 4,
    "policy.dim_model": 16,
    "policy.n_heads": 2,
    "policy.dim_feedforward": 24,
    "policy.n_encoder_layers": 1,
    "policy.n_decoder_layers": 1,
    "policy.scheduler_warmup_steps": 3,
    "policy.device": "cpu",
    "dataset.balance_tasks": "true",
    "dataset.paraphrase_tasks": "true",
}
SMALL_DIFFUSION = {
    "policy.type": "diffusion",
    "policy.horizon": 8,
    "policy.n_action_steps": 4,
    "policy.down_dims": "[16,24]",
    "policy.diffusion_step_embed_dim": 16,
    "policy.drop_n_last_frames": 2,
    "policy.scheduler_warmup_steps": 3,
    "policy.device": "cpu",
}
RUN = {"steps": 8, "batch_size": 4, "save_freq": 2, "log_freq": 2}


def needs_peft() -> None:
    """Skip a module if peft is not installed, without importing peft, which takes seconds."""
    if importlib.util.find_spec("peft") is None:
        pytest.skip("adapters need peft: pip install 'proctor[peft]'", allow_module_level=True)


def write_numbers(root: Path, lengths=(9, 7, 8), features=FEATURES) -> Path:
    """Write episodes with states and actions on smooth curves; tasks alternate."""
    writer = DatasetWriter.create(root, fps=10, features=features)
    for episode, length in enumerate(lengths):
        for step in range(length):
            at = np.arange(4) + step / 5 + episode
            curves = {"observation.state": at, "action": at + 1}
            frame = {
                key: np.sin(curves.get(key, at + 2))[: entry["shape"][0]].astype(np.float32)
                for key, entry in features.items()
            }
            writer.add_frame(frame, f"task {episode % 2}")
        writer.end_episode()
    writer.close()
    return root


def write_seen(
    root: Path, key: str = "observation.images.top", side: int = 20, numbers: int = 2
) -> Path:
    """Write two episodes with images, states and actions."""
    vector = {"dtype": "float32", "shape": [numbers], "names": None}
    picture = {"dtype": "image", "shape": [side, side, 3], "names": ["height", "width", "channels"]}
    features = {"observation.state": vector, "action": vector, key: picture}
    writer = DatasetWriter.create(root, fps=10, features=features)
    drawn = np.random.default_rng(0)
    for episode in range(2):
        for _ in range(6):
            frame = {
                "observation.state": drawn.normal(size=numbers).astype(np.float32),
                "action": drawn.normal(size=numbers).astype(np.float32),
                key: drawn.integers(0, 256, (side, side, 3), dtype=np.uint8),
            }
            writer.add_frame(frame, f"task {episode}")
        writer.end_episode()
    writer.close()
    return root


def words(root: Path, output: Path, *settings: dict) -> list[str]:
    """Return the flags of a `proctor train` command; later settings override earlier ones."""
    joined = {"dataset.repo_id": "someone/numbers", "dataset.root": root, "output_dir": output}
    for some in settings:
        joined |= some
    return [f"--{name}={value}" for name, value in joined.items()]


def files_of(checkpoint: Path) -> dict[str, str]:
    """Return the hash of every file of a checkpoint, except those that name folder or time.

    They hold settings only, which a resumed training takes; a policy is loaded from the others.
    """
    return {
        str(path.relative_to(checkpoint)): sha256_of(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name not in ("train_config.json", "train.json")
    }
