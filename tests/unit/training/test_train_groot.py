"""Training of GR00T from its base model: exact resume, absolute and relative actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.datasets.writer import DatasetWriter
from tests.conftest import digests
from tests.tiny_families import SIDE, flags_of, tiny_models

from .builders import RUN, files_of, words, write_seen
from .test_peft import Killed, kill_at, train

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from safetensors.torch import load_file

from proctor.policies.groot import config as groot_config
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint

pytestmark = pytest.mark.vla
SHORT = RUN | {"steps": 2, "save_freq": 1, "num_workers": 0}


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


@pytest.mark.parametrize(
    ("kind", "base", "frozen"),
    [
        ("groot", "groot_base", "model.model.language_model.layers.0.mlp.up_proj.weight"),
        (
            "groot_n15",
            "groot_n15_base/base",
            "eagle_model.language_model.model.layers.0.mlp.up_proj.weight",
        ),
    ],
)
def test_from_the_base_model_to_a_policy_that_plays_killed_or_not(
    tmp_path: Path, monkeypatch: Any, run: Callable[..., Any], kind: str, base: str, frozen: str
) -> None:
    seen = write_seen(tmp_path / "seen", key="observation.image", side=SIDE)
    how = flags_of(kind, tmp_path) | {"policy.optimizer_lr": 1e-2}
    train(*words(seen, tmp_path / "whole", SHORT, how))
    with monkeypatch.context() as patch:
        kill_at(patch, 2)
        with pytest.raises(Killed):
            train(*words(seen, tmp_path / "killed", SHORT, how))
    train("--resume", f"--output_dir={tmp_path / 'killed'}")
    whole, killed = (tmp_path / name / "checkpoints/000002" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    before = load_file(tmp_path / base / "model.safetensors")
    after = load_file(whole / "pretrained_model" / "model.safetensors")
    frozen, trained = f"backbone.{frozen}", "action_head.model.proj_out_2.weight"
    assert np.array_equal(after[f"_groot_model.{frozen}"], before[frozen])
    assert not np.array_equal(after[f"_groot_model.{trained}"], before[trained])
    play = {
        "policy__type": "pretrained", "policy__path": str(whole / "pretrained_model"),
        "env__image_size": SIDE, "env__episode_length": 5, "eval__n_episodes": 2,
        "eval__use_async_envs": False,
    }  # fmt: skip
    alone, together = (run(eval__batch_size=size, **play) for size in (1, 2))
    assert digests(together) == digests(alone)


def write_named(root: Path) -> Path:
    """Write two episodes of 8 frames with named joints."""
    vector = {"dtype": "float32", "shape": [2], "names": ["shoulder.pos", "gripper.pos"]}
    picture = {"dtype": "image", "shape": [SIDE, SIDE, 3], "names": ["height", "width", "channels"]}
    features = {"observation.state": vector, "action": vector, "observation.image": picture}
    writer = DatasetWriter.create(root, fps=10, features=features)
    for episode in range(2):
        for step in range(8):
            frame = {
                "observation.state": np.array([step, 1.0], np.float32),
                "action": np.array([step + 0.5 + episode, 0.1 * step], np.float32),
                "observation.image": np.full((SIDE, SIDE, 3), step, np.uint8),
            }
            writer.add_frame(frame, "push")
        writer.end_episode()
    writer.close()
    return root


def test_relative_actions_have_statistics_for_every_step(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(groot_config, "HORIZON", 4)
    seen = write_named(tmp_path / "named")
    how = flags_of("groot", tmp_path) | {
        "policy.use_relative_actions": "true", "policy.relative_exclude_joints": "[gripper]",
        "steps": 1,
    }  # fmt: skip
    train(*words(seen, tmp_path / "run", SHORT, how))
    folder = tmp_path / "run/checkpoints/000001/pretrained_model"
    decode = json.loads((folder / "policy_postprocessor.json").read_text())["steps"][0]
    assert decode["registry_name"] == "groot_n1_7_action_decode_v1"
    stats = decode["config"]["raw_stats"]
    assert list(stats["action"]) == ["single_arm", "gripper"]
    relative = stats["relative_action"]
    assert list(relative) == ["single_arm"]
    # An action is 0.5 or 1.5 ahead of the state of its own step.
    assert np.allclose(relative["single_arm"]["min"], [[0.5], [1.5], [2.5], [3.5]])
    assert np.allclose(relative["single_arm"]["max"], [[1.5], [2.5], [3.5], [4.5]])
    parts = read_checkpoint(folder)
    assert parts.postprocessor.needs == ("observation.state",)


def write_poses(root: Path) -> Path:
    """Write two episodes of 8 frames: a pose that moves along its own x axis, turned about z."""
    names = [*"xyz", *(f"r{n}" for n in range(6)), "gripper.pos"]
    vector = {"dtype": "float32", "shape": [10], "names": names}
    picture = {"dtype": "image", "shape": [SIDE, SIDE, 3], "names": ["height", "width", "channels"]}
    features = {"observation.state": vector, "action": vector, "observation.image": picture}
    writer = DatasetWriter.create(root, fps=10, features=features)
    turned = [0, 1, 0, -1, 0, 0]  # two rows of a quarter turn: its x axis is minus the world's y
    for episode in range(2):
        for step in range(8):
            frame = {
                "observation.state": np.array([5, -step, 0, *turned, 1], np.float32),
                "action": np.array([5, -step - 1 - episode, 0, *turned, 0.5], np.float32),
                "observation.image": np.full((SIDE, SIDE, 3), step, np.uint8),
            }
            writer.add_frame(frame, "push")
        writer.end_episode()
    writer.close()
    return root


def test_relative_poses_have_statistics_in_the_frame_of_the_state(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(groot_config, "HORIZON", 4)
    seen = write_poses(tmp_path / "poses")
    how = flags_of("groot", tmp_path) | {
        "policy.use_relative_actions": "true", "policy.relative_exclude_joints": "[gripper]",
        "steps": 1,
    }  # fmt: skip
    out_of_range = how | {"policy.relative_poses": "[2]"}
    train(*words(seen, tmp_path / "run", SHORT, out_of_range), expect=2)
    train(*words(seen, tmp_path / "run", SHORT, how | {"policy.relative_poses": "[0]"}))
    folder = tmp_path / "run/checkpoints/000001/pretrained_model"
    decode = json.loads((folder / "policy_postprocessor.json").read_text())["steps"][0]
    relative = decode["config"]["raw_stats"]["relative_action"]
    assert list(relative) == ["eef"]
    straight = [0, 0, 1, 0, 0, 0, 1, 0]
    assert np.allclose(relative["eef"]["min"], [[n, *straight] for n in (1, 2, 3, 4)])
    assert np.allclose(relative["eef"]["max"], [[n, *straight] for n in (2, 3, 4, 5)])
    kinds = decode["config"]["modality_config"]["action"]["action_configs"]
    assert [kind["type"] for kind in kinds] == ["EEF", "NON_EEF"]


def test_relative_actions_of_unnamed_joints_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(groot_config, "HORIZON", 4)
    seen = write_seen(tmp_path / "seen", key="observation.image", side=SIDE)
    how = flags_of("groot", tmp_path) | {"policy.use_relative_actions": "true"}
    train(*words(seen, tmp_path / "run", SHORT, how), expect=2)
    assert not (tmp_path / "run").exists()
