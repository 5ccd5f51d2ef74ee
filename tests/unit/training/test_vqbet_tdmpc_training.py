"""Training of VQ-BeT and TD-MPC, with phases, target networks and rewards: exact resume."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.datasets.writer import DatasetWriter
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint

from .builders import FEATURES, RUN, files_of, words, write_numbers
from .test_train import Killed, kill_at, train

SMALL_TDMPC = {
    "policy.type": "tdmpc",
    "policy.horizon": 3,
    "policy.latent_dim": 6,
    "policy.mlp_dim": 12,
    "policy.state_encoder_hidden_dim": 8,
    "policy.device": "cpu",
}
SMALL_VQBET = {
    "policy.type": "vqbet",
    "policy.n_obs_steps": 2,
    "policy.n_vqvae_training_steps": 5,
    "policy.crop_shape": "[40,40]",
    "policy.pretrained_backbone_weights": "null",
    "policy.gpt_input_dim": 16,
    "policy.gpt_output_dim": 16,
    "policy.gpt_hidden_dim": 16,
    "policy.gpt_n_head": 2,
    "policy.gpt_n_layer": 1,
    "policy.gpt_block_size": 12,
    "policy.scheduler_warmup_steps": 2,
    "policy.device": "cpu",
    "num_workers": 0,
}
REWARD = {"next.reward": {"dtype": "float32", "shape": [1], "names": None}}
AXES = ["height", "width", "channels"]
CAMERA = {"observation.image": {"dtype": "image", "shape": [48, 48, 3], "names": AXES}}


def write_pictures(root):
    """Write episodes with a state, an action and a noise image."""
    features = {key: FEATURES[key] for key in ("observation.state", "action")} | CAMERA
    writer = DatasetWriter.create(root, fps=10, features=features)
    rng = np.random.default_rng(0)
    for _ in range(2):
        for _ in range(9):
            numbers = {
                k: rng.normal(size=2).astype(np.float32) for k in features if k not in CAMERA
            }
            picture = rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)
            writer.add_frame(numbers | {"observation.image": picture}, "do it")
        writer.end_episode()
    writer.close()
    return root


@pytest.mark.parametrize(
    ("family", "kills"),
    [("tdmpc", (1, 4, 7)), pytest.param("vqbet", (4, 5, 7), marks=pytest.mark.slow)],
)
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path, monkeypatch, family, kills
):
    if family == "tdmpc":
        root, small = write_numbers(tmp_path / "data", features=FEATURES | REWARD), SMALL_TDMPC
    else:
        root, small = write_pictures(tmp_path / "data"), SMALL_VQBET
    train(*words(root, tmp_path / "whole", small, RUN))
    asked = words(root, tmp_path / "killed", small, RUN)
    again = ["--resume", f"--output_dir={tmp_path / 'killed'}"]
    for step in kills:
        with monkeypatch.context() as patch:
            kill_at(patch, step)
            with pytest.raises(Killed):
                train(*asked)
        asked = again
    train(*again)
    whole, killed = (tmp_path / name / "checkpoints/000008" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    if family == "vqbet":
        phases = [phase_of(tmp_path / f"whole/checkpoints/{step:06d}") for step in (4, 6)]
        assert phases == [False, True]


def phase_of(checkpoint) -> bool:
    return bool(read_checkpoint(checkpoint / "pretrained_model").network.codes.discretized)


def test_a_dataset_without_rewards_is_refused_by_who_learns_from_them(numbers, tmp_path, capsys):
    train(*words(numbers, tmp_path / "run", SMALL_TDMPC, RUN), expect=2)
    assert "--record.extra=next.reward" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
