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
from tests.refusals import refuses

from proctor.errors import UsageError
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy, read_checkpoint
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


def refusal(folder: Path, code: str) -> str:
    """Return the text of the error with ``code``, which evaluation and training raise."""
    with refuses(UsageError, code) as refused:
        read_checkpoint(folder)
    text = str(refused.value)
    assert "\n" not in text
    with refuses(UsageError, code):
        read_checkpoint(folder, use=ConfigUse.TRAINING)
    return text


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
    text = refusal(folder, "adapter.missing-base")
    assert "act_env_full" in text
    assert f"base_model_name_or_path in {folder / CONFIG}" in text
    monkeypatch.chdir(folder.parent)
    assert len(read_checkpoint(folder).files) == 8


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"r": 10**9}, "adapter.invalid-config"),
        ({"r": 16_384}, "checkpoint.shape-mismatch"),
        ({"r": 2}, "checkpoint.shape-mismatch"),
        ({"lora_alpha": 1e300}, "adapter.invalid-config"),
        ({"peft_type": "PROMPT_TUNING"}, "adapter.unsupported"),
        ({"base_model_name_or_path": None}, "adapter.invalid-config"),
        ({"base_model_name_or_path": "../../../etc"}, "adapter.missing-base"),
        ({"base_model_name_or_path": "/etc"}, "adapter.missing-base"),
        ({"base_model_name_or_path": "/dev/zero"}, "adapter.missing-base"),
        ({"base_model_name_or_path": "a\0b"}, "adapter.missing-base"),
        ({"megatron_config": {"a": 1}}, "adapter.unsupported"),
        ({"layer_replication": [[0, 10**6]]}, "adapter.unsupported"),
        ({"rank_pattern": {"(a+)+$": 8}}, "adapter.unsupported"),
        ({"a_new_field": "x"}, "adapter.unsupported"),
        ({"init_lora_weights": "pissa"}, "adapter.unsupported"),
        ({"bias": "all"}, "adapter.unsupported"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_meant_is_one_line(
    folder: Path, changes: dict[str, Any], code: str
) -> None:
    edit(folder, **changes)
    text = refusal(folder, code)
    assert code == "checkpoint.shape-mismatch" or next(iter(changes)) in text


def test_a_base_that_is_an_adapter_is_refused_even_the_adapter_itself(folder: Path) -> None:
    edit(folder, base_model_name_or_path=str(folder))
    assert "PEFT adapter" in refusal(folder, "checkpoint.missing-file")


def test_a_regex_of_somebody_elses_is_never_run(folder: Path) -> None:
    """Against a name of 60 letters this one would take longer than the universe has."""
    expected = chunk_of(folder)
    edit(folder, target_modules=r"(([a-z_.0-9]+)+)+!", exclude_modules=r"((.+)+)+!")
    began = time.monotonic()
    np.testing.assert_array_equal(chunk_of(folder), expected)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: {"base_model.model.model.x.lora_A.weight": t[LINEAR]}, "adapter.missing-tensor"),
        (
            lambda t: {k.replace(".encoder.", ".nowhere."): v for k, v in t.items()},
            "adapter.unknown-layer",
        ),
        (lambda t: t | {"model.action_head.weight": torch.ones(3)}, "adapter.unknown-tensor"),
        (lambda t: {k: v for k, v in t.items() if "lora_A" not in k}, "adapter.missing-tensor"),
        (lambda t: t | {LINEAR: t[LINEAR] * torch.nan}, "checkpoint.not-finite"),
        (lambda t: t | {LINEAR: t[LINEAR].int()}, "checkpoint.dtype-mismatch"),
        (lambda t: t | {LINEAR: t[LINEAR][:, :-1].clone()}, "checkpoint.shape-mismatch"),
    ],
)
def test_tensors_that_are_for_no_layer_are_one_line(folder: Path, change: Any, code: str) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    refusal(folder, code)


def test_pickles_are_refused_and_never_opened(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(folder / "exploded"),)

    (folder / WEIGHTS).unlink()
    torch.save({"a": Bomb()}, folder / "adapter_model.bin")
    assert "adapter_model.bin" in refusal(folder, "checkpoint.missing-file")
    torch.save({"a": Bomb()}, folder / WEIGHTS)
    refusal(folder, "checkpoint.pickle")
    assert not (folder / "exploded").exists()


def test_a_missing_config_and_a_base_that_is_not_whole_are_one_line(folder: Path) -> None:
    (folder.parent / "act_env_full" / "model.safetensors").unlink()
    assert "act_env_full has no model.safetensors" in refusal(folder, "checkpoint.missing-file")
    (folder / CONFIG).unlink()
    assert CONFIG in refusal(folder, "checkpoint.missing-file")


def test_an_adapter_has_to_fit_where_it_is_played(folder: Path) -> None:
    with refuses(UsageError, "policy.missing-input"):
        load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
