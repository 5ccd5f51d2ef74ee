"""A loaded policy owns its weights: nothing that happens to the files later changes it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from tests.refusals import refuses
from tests.unit.policies.small_policies import small_act, write_small

from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint import checkpoint, tensor_file
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.location import locate
from proctor.policies.lerobot.checkpoint.pretrained import PLUGIN, PretrainedConfig
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.lerobot.processors import pipelines

WEIGHTS = "model.safetensors"
NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_small(small_act(), tmp_path / "checkpoint")


def other(file: Path) -> bytes:
    """Return a file of the same size with other numbers."""
    return save({k: t * -2 if t.is_floating_point() else t for k, t in load_file(file).items()})


def overwrite(file: Path, content: bytes) -> None:
    """Write into the same inode, as cp, scp and rsync --inplace do."""
    with file.open("r+b") as opened:
        opened.write(content)


def test_overwriting_the_files_does_not_change_a_loaded_policy(folder: Path) -> None:
    parts = read_checkpoint(folder)
    before = {key: tensor.clone() for key, tensor in parts.network.state_dict().items()}
    states = [step.state() for step in parts.preprocessor.steps]
    stats = [{k: t.clone() for k, t in state.items()} for state in states]
    for name in (WEIGHTS, NORMALIZER):
        overwrite(folder / name, other(folder / name))
    for key, tensor in parts.network.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    for held, was in zip(states, stats, strict=True):
        assert all(torch.equal(held[key], was[key]) for key in was)


def test_no_file_of_a_checkpoint_stays_mapped(folder: Path) -> None:
    parts = read_checkpoint(folder)
    maps = Path("/proc/self/maps").read_text()
    assert parts.network is not None
    assert str(folder) not in maps


def test_truncating_the_file_does_not_end_the_process(folder: Path) -> None:
    parts = read_checkpoint(folder)
    os.truncate(folder / WEIGHTS, 0)
    assert sum(float(p.detach().sum()) for p in parts.network.parameters()) != 0


def test_the_recorded_hash_is_of_the_bytes_that_were_loaded(folder: Path) -> None:
    parts = read_checkpoint(folder)
    for name, recorded in parts.files.items():
        assert recorded == hashlib.sha256((folder / name).read_bytes()).hexdigest(), name


def test_weights_that_change_while_they_are_read_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, content = folder / WEIGHTS, other(folder / WEIGHTS)
    read_into, calls = tensor_file._read_into, []

    def interrupted(fd: int, buffer: memoryview) -> int:
        calls.append(fd)
        if len(calls) == 5:
            overwrite(file, content)
        return read_into(fd, buffer)

    monkeypatch.setattr(tensor_file, "_read_into", interrupted)
    with refuses(UsageError, "checkpoint.changed"):
        read_tensors(file)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "policy_preprocessor.json", NORMALIZER])
def test_a_checkpoint_that_changes_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    built = checkpoint.build_network

    def interrupted(*args: object) -> object:
        content = (folder / name).read_bytes()
        (folder / "new").write_bytes(content)
        (folder / "new").replace(folder / name)
        return built(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "build_network", interrupted)
    with refuses(UsageError, "checkpoint.changed") as refused:
        read_checkpoint(folder)
    assert name in str(refused.value)


def test_a_shard_that_changes_while_the_next_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = ["model-1.safetensors", "model-2.safetensors"]
    places = {key: names[number % 2] for number, key in enumerate(tensors)}
    for name in names:
        save_file({k: t for k, t in tensors.items() if places[k] == name}, folder / name)
    index = folder / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    read_checkpoint(folder)
    read_into, calls = tensor_file._read_into, []
    first, content = folder / names[0], other(folder / names[0])

    def interrupted(fd: int, buffer: memoryview) -> int:
        calls.append(fd)
        if len(calls) == len([k for k in places if places[k] == names[0]]) + 6:
            overwrite(first, content)
        return read_into(fd, buffer)

    monkeypatch.setattr(tensor_file, "_read_into", interrupted)
    with refuses(UsageError, "checkpoint.changed") as refused:
        read_checkpoint(folder)
    assert "model-1.safetensors" in str(refused.value)


def test_a_link_to_a_checkpoint_is_followed_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, last = tmp_path / "newer", tmp_path / "last"
    shutil.copytree(folder, newer)
    overwrite(newer / WEIGHTS, other(newer / WEIGHTS))
    last.symlink_to(folder)
    read_pipeline = pipelines.read_pipeline

    def interrupted(place: Path, name: str) -> object:
        last.unlink()
        last.symlink_to(newer)
        return read_pipeline(place, name)

    monkeypatch.setattr(pipelines, "read_pipeline", interrupted)
    parts = read_checkpoint(locate(str(last)).folder)
    loaded = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    assert parts.files[WEIGHTS] == loaded
    expected = load_file(folder / WEIGHTS)
    for key, tensor in parts.network.state_dict().items():
        assert torch.equal(tensor, expected[parts.prefix + key]), key


def test_a_pinned_config_names_the_folder_behind_the_link(tmp_path: Path, folder: Path) -> None:
    last = tmp_path / "last"
    last.symlink_to(folder.name)
    assert PLUGIN.pin is not None
    pinned = PLUGIN.pin(PretrainedConfig(path=str(last)))
    assert pinned.path == str(folder.resolve())
    on_hub = PretrainedConfig(path="somebody/something", revision="main")
    assert PLUGIN.pin(on_hub) == on_hub
