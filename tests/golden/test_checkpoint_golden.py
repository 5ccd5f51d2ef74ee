"""Whole checkpoints that LeRobot wrote: read, run from raw input to action, written again."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from recipes import GOLDEN, assert_close
from safetensors.torch import load_file

from proctor.features import Feature, FeatureKind, NormMode
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint, read_config
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.processors.pipelines import read_pipeline
from proctor.policies.lerobot.processors.processors import Normalize, Unnormalize
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.types import EpisodeSpec, Task

VINTAGES = ["act_env_full", "act_env_legacy_v0.3.3"]
TASK = Task("golden", 0, "golden", "do it", 10, 10)


def checkpoint_dir(name):
    return GOLDEN / "checkpoints" / name


def golden_io():
    return load_file(checkpoint_dir("act_env_full") / "io.safetensors")


def act_once(parts) -> np.ndarray:
    policy = ChunkPolicy(parts, "cpu")
    io = golden_io()
    spec = EpisodeSpec(TASK, 0, 0)
    observations = {key: io[key].numpy()[:, None] for key in policy.spec.inputs}
    return policy.act(Batch([Query(spec, 0, policy.new_episode(spec))], observations))


@pytest.mark.parametrize("name", VINTAGES)
def test_raw_input_to_chunk(name):
    parts = read_checkpoint(checkpoint_dir(name), {"n_action_steps": 10})
    chunk = act_once(parts)
    assert_close(name, torch.from_numpy(chunk), golden_io()["chunk"], 1e-5)


def test_the_legacy_checkpoint_acts_exactly_as_its_successor():
    new, old = (act_once(read_checkpoint(checkpoint_dir(name))) for name in VINTAGES)
    np.testing.assert_array_equal(new, old)


def test_normalised_inputs_match():
    io = golden_io()
    pre = read_checkpoint(checkpoint_dir("act_env_full")).preprocessor
    found = pre({k: v for k, v in io.items() if k.startswith("observation")})
    assert torch.equal(found["observation.state"], io["normalized.state"])
    assert torch.equal(found["observation.environment_state"], io["normalized.env"])


def test_reading_and_writing_gives_back_every_byte(tmp_path):
    source = checkpoint_dir("act_env_full")
    write_checkpoint(read_checkpoint(source), tmp_path / "copy")
    names = {file.name for file in (tmp_path / "copy").iterdir()}
    assert names == {file.name for file in source.iterdir()} - {"io.safetensors"}
    for name in names:
        assert (tmp_path / "copy" / name).read_bytes() == (source / name).read_bytes(), name


def test_a_legacy_checkpoint_becomes_a_current_one_and_stays_the_same(tmp_path):
    first = read_checkpoint(checkpoint_dir("act_env_legacy_v0.3.3"))
    write_checkpoint(first, tmp_path / "first")
    write_checkpoint(read_checkpoint(tmp_path / "first"), tmp_path / "second")
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes(), file.name
    np.testing.assert_array_equal(act_once(first), act_once(read_checkpoint(tmp_path / "second")))


def test_the_files_of_a_real_training_run_are_read():
    folder = checkpoint_dir("act_train_run_meta") / "pretrained_model"
    _, config, notes = read_config(folder)
    assert config.cameras == ["observation.images.top"]
    assert notes == []
    image = torch.rand(1, 3, 64, 96)
    pre = read_pipeline(folder, "policy_preprocessor")
    stats = pre.steps[3].stats["observation.images.top"]
    found = pre({"observation.images.top": image})["observation.images.top"]
    assert torch.equal(found, (image - stats["mean"]) / (stats["std"] + 1e-8))


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10", "IDENTITY"])
def test_normalisation_formulas_match(mode):
    golden = json.loads((GOLDEN / "misc.json").read_text())["normalize"]
    stats = {"observation.state": {k: torch.tensor(v) for k, v in golden["stats"].items()}}
    step_config = {
        "features": {"observation.state": Feature(FeatureKind.STATE, (2,), "float32")},
        "norm_map": {"STATE": NormMode(mode)},
        "stats": stats,
    }
    x = torch.tensor(golden["x"])
    y = Normalize(**step_config)({"observation.state": x})["observation.state"]
    back = Unnormalize(**step_config)({"observation.state": y})["observation.state"]
    expected = golden.get(mode, {"y": golden["x"], "inverse_of_y": golden["x"]})
    assert torch.equal(y, torch.tensor(expected["y"]))
    assert torch.equal(back, torch.tensor(expected["inverse_of_y"]))
