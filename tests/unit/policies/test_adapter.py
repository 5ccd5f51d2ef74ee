"""Adapters: LeRobot's own is read to its own actions; a hostile one is one line, nothing run."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_policies import OFFERED

from proctor.errors import ProctorError, UsageError
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint import load_policy, read_checkpoint
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.types import EpisodeSpec, Task

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "checkpoints"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LINEAR = "base_model.model.model.encoder.layers.0.linear1.lora_A.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter that LeRobot 0.6.1 made with peft 0.21.2, beside its base."""
    for name in ("act_env_full", "act_env_adapter"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    edit(tmp_path / "act_env_adapter", base_model_name_or_path=str(tmp_path / "act_env_full"))
    return tmp_path / "act_env_adapter"


def edit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(told | changes))


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_checkpoint(folder)
    assert isinstance(caught.value, ProctorError)
    said = str(caught.value)
    assert "\n" not in said
    with pytest.raises(UsageError):  # a training reads it with the same care
        read_checkpoint(folder, use=ConfigUse.TRAINING)
    return said


def chunk_of(folder: Path) -> np.ndarray:
    policy = ChunkPolicy(read_checkpoint(folder, {"n_action_steps": 10}), "cpu")
    io = load_file(GOLDEN / "act_env_full" / "io.safetensors")
    spec = EpisodeSpec(Task("golden", 0, "golden", "do it", 10, 10), 0, 0)
    seen = {key: io[key].numpy()[:, None] for key in policy.spec.inputs}
    return policy.act(Batch([Query(spec, 0, policy.new_episode(spec))], seen))


def test_lerobots_adapter_acts_as_in_lerobot(folder: Path) -> None:
    """Of attentions, feed-forward layers, a projection, and a head that was trained whole."""
    expected = load_file(folder / "io.safetensors")["chunk"]
    np.testing.assert_allclose(chunk_of(folder), expected, atol=1e-5)
    assert np.abs(chunk_of(folder.parent / "act_env_full") - expected.numpy()).max() > 0.1


def test_what_an_adapter_does_is_named_by_its_files_and_its_bases(folder: Path) -> None:
    parts = read_checkpoint(folder)
    assert {CONFIG, WEIGHTS, "base/model.safetensors", "config.json"} < parts.files.keys()
    assert parts.adapter is None  # merged: a policy like any other
    assert not any("lora" in key for key in parts.network.state_dict())
    tensors = load_file(folder / WEIGHTS)
    save_file({key: value + 0.01 for key, value in tensors.items()}, folder / WEIGHTS)
    assert read_checkpoint(folder).files != parts.files


def test_a_base_is_found_where_the_adapter_says_as_lerobot_finds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder, base_model_name_or_path="act_env_full")
    said = refusal(folder)
    assert "the base policy of this adapter cannot be had: act_env_full does not exist" in said
    assert f"base_model_name_or_path in {folder / CONFIG}" in said
    monkeypatch.chdir(folder.parent)
    assert len(read_checkpoint(folder).files) == 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"r": 10**9}, "Expected `int` <= 16384 - at `$.r`"),
        ({"r": 16_384}, "lora_A.weight expected [16384, 64], found [3, 64]"),
        ({"r": 2}, "expected [2, "),
        ({"lora_alpha": 1e300}, "$.lora_alpha"),
        ({"peft_type": "PROMPT_TUNING"}, "peft_type is 'PROMPT_TUNING' (we know LORA)"),
        ({"base_model_name_or_path": None}, "$.base_model_name_or_path"),
        ({"base_model_name_or_path": "../../../etc"}, "cannot be had"),
        ({"base_model_name_or_path": "/etc"}, "/etc has no config.json, so it is not a checkpoint"),
        ({"base_model_name_or_path": "/dev/zero"}, "is a file; give the folder"),
        ({"base_model_name_or_path": "a\0b"}, "cannot be had"),
        ({"megatron_config": {"a": 1}}, "megatron_config is set, which is not read here"),
        ({"layer_replication": [[0, 10**6]]}, "layer_replication is set"),
        ({"rank_pattern": {"(a+)+$": 8}}, "rank_pattern is set"),
        ({"a_new_field": "x"}, "a_new_field is set"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base"),
        ({"bias": "all"}, "bias is 'all'"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_meant_is_one_line(
    folder: Path, changes: dict[str, Any], told: str
) -> None:
    edit(folder, **changes)
    assert told in refusal(folder)


def test_a_base_that_is_an_adapter_is_refused_even_the_adapter_itself(folder: Path) -> None:
    edit(folder, base_model_name_or_path=str(folder))
    assert "is a PEFT adapter, and no whole policy" in refusal(folder)


def test_a_regex_of_somebody_elses_is_never_run(folder: Path) -> None:
    """Against a name of 60 letters this one would take longer than the universe has."""
    expected = chunk_of(folder)
    edit(folder, target_modules=r"(([a-z_.0-9]+)+)+!", exclude_modules=r"((.+)+)+!")
    began = time.monotonic()
    np.testing.assert_array_equal(chunk_of(folder), expected)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: {"base_model.model.model.x.lora_A.weight": t[LINEAR]}, "lora_B.weight is miss"),
        (
            lambda t: {k.replace(".encoder.", ".nowhere."): v for k, v in t.items()},
            "is for no layer of the base policy",
        ),
        (
            lambda t: t | {"model.action_head.weight": torch.ones(3)},
            "no name of an adapter's tensor",
        ),
        (lambda t: {k: v for k, v in t.items() if "lora_A" not in k}, "has no lora_A beside it"),
        (lambda t: t | {LINEAR: t[LINEAR] * torch.nan}, "holds NaN"),
        (lambda t: t | {LINEAR: t[LINEAR].int()}, "expected torch.float32, found torch.int32"),
        (lambda t: t | {LINEAR: t[LINEAR][:, :-1].clone()}, "expected [3, 64], found [3, 63]"),
    ],
)
def test_tensors_that_are_for_no_layer_are_one_line(folder: Path, change: Any, told: str) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    assert told in refusal(folder)


def test_pickles_are_refused_and_never_opened(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(folder / "exploded"),)

    (folder / WEIGHTS).unlink()
    torch.save({"a": Bomb()}, folder / "adapter_model.bin")
    assert "adapter_model.bin but no adapter_model.safetensors: pickles can" in refusal(folder)
    torch.save({"a": Bomb()}, folder / WEIGHTS)
    assert "is a pickle, which can run code: refused" in refusal(folder)
    assert not (folder / "exploded").exists()


def test_a_missing_config_and_a_base_that_is_not_whole_are_one_line(folder: Path) -> None:
    (folder.parent / "act_env_full" / "model.safetensors").unlink()
    assert "act_env_full has no model.safetensors" in refusal(folder)
    (folder / CONFIG).unlink()
    assert f"{folder} has no {CONFIG}" in refusal(folder)


def test_an_adapter_has_to_fit_where_it_is_played(folder: Path) -> None:
    with pytest.raises(UsageError, match="wants observation"):
        load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
