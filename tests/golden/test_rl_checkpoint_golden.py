"""Checkpoints of online learning against one that LeRobot's learner wrote."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
import torch
from recipes import GOLDEN
from safetensors.torch import load_file

from proctor.config.sections.online import SacSettings
from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.rl.algorithms.sac import Sac
from proctor.rl.learner.checkpoints import read_sac, write_sac

CHECKPOINT = GOLDEN / "rl_run" / "000006"
OPTIMIZERS = ("actor", "critic", "discrete_critic", "temperature")


def load_learner(checkpoint):
    raw = json.loads((checkpoint / "algorithm" / "config.json").read_text())
    raw.pop("policy_config")
    torch.manual_seed(0)
    network = read_checkpoint(checkpoint / "pretrained_model", {}).network
    network.begin_training()
    return Sac(network, msgspec.convert(raw, SacSettings), torch.Generator())


def test_a_checkpoint_of_lerobot_is_written_again_with_the_same_content(tmp_path):
    learner = load_learner(CHECKPOINT)
    found = read_sac(learner, CHECKPOINT)
    assert (found.step, found.interaction_step, learner.step) == (6, 0, 6)
    write_sac(learner, tmp_path, found.interaction_step, seed=7)
    written = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    expected = [p.relative_to(CHECKPOINT) for p in CHECKPOINT.rglob("*") if p.is_file()]
    assert written == sorted(p for p in expected if p.parts[0] != "pretrained_model")
    for file in written:
        if file.name == "rng_state.safetensors":  # Proctor's generators are elsewhere
            shapes = [{k: v.shape for k, v in load_file(f / file).items()}
                      for f in (tmp_path, CHECKPOINT)]  # fmt: skip
            assert shapes[0] == shapes[1]
        elif file.suffix == ".safetensors":
            ours, theirs = load_file(tmp_path / file), load_file(CHECKPOINT / file)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs), file
        else:
            ours, theirs = (json.loads((f / file).read_text()) for f in (tmp_path, CHECKPOINT))
            assert ours == theirs, file


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_of_another_network_are_refused(name, tmp_path):
    shutil.copytree(CHECKPOINT, tmp_path / "c")
    file = tmp_path / "c" / "training_state" / name / "optimizer_param_groups.json"
    groups = json.loads(file.read_text())
    groups[0]["params"].append(99)
    file.write_text(json.dumps(groups))
    with pytest.raises(UsageError) as caught:
        read_sac(load_learner(CHECKPOINT), tmp_path / "c")
    assert caught.value.code == "checkpoint.shape-mismatch"


def test_critics_of_another_width_are_refused():
    learner = load_learner(CHECKPOINT)
    learner.settings.critic_network_kwargs.hidden_dims = [9, 9]
    other = Sac(learner.network, learner.settings, torch.Generator())
    with pytest.raises(UsageError) as caught:
        read_sac(other, CHECKPOINT)
    assert caught.value.code == "checkpoint.shape-mismatch"
