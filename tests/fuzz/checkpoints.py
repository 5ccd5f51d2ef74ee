"""Fuzzing of checkpoints: folders, safetensors files and Hub responses."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save, save_file

from proctor.benchmarks.base import interface_of
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.features import ENVIRONMENT_STATE, STATE, Feature, FeatureKind
from proctor.policies.act import config as act
from proctor.policies.act.config import ActConfig
from proctor.policies.diffusion import config as diffusion
from proctor.policies.diffusion.config import DiffusionConfig
from proctor.policies.lerobot.checkpoint.checkpoint import fresh_policy
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.multi_task_dit import config as dit
from proctor.policies.multi_task_dit.config import DitConfig
from tests.fuzz.hostile import BOMBS, Draw, json_bytes, mutated, numbers, spoiled, texts, words
from tests.fuzz.runs import Files, write_files
from tests.fuzz.sandbox import Sandbox
from tests.fuzz.sentinel import CANARY
from tests.unit.policies.tiny_tokenizer import write_clip

INPUTS = {
    STATE: Feature(FeatureKind.STATE, (2,), "float32"),
    ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float32"),
}
ACTION = {"action": Feature(FeatureKind.ACTION, (2,), "float32")}
_ACT: dict[str, Any] = {
    "dim_model": 8, "n_heads": 2, "dim_feedforward": 8, "n_encoder_layers": 1, "latent_dim": 2,
    "n_vae_encoder_layers": 1, "chunk_size": 4, "n_action_steps": 2,
}  # fmt: skip
_DIFFUSION: dict[str, Any] = {
    "down_dims": [8, 8], "n_groups": 4, "horizon": 8, "n_action_steps": 4, "num_train_timesteps": 5,
    "diffusion_step_embed_dim": 8,
}  # fmt: skip

_DIT: dict[str, Any] = {
    "horizon": 8, "n_action_steps": 4, "hidden_dim": 8, "num_layers": 1, "num_heads": 2,
    "timestep_embed_dim": 8, "num_train_timesteps": 5, "tokenizer_max_length": 12,
}  # fmt: skip


def good_checkpoints(folder: Path) -> list[Files]:
    """Return checkpoints of a small ACT, a small Diffusion, and ACTs in other weight formats."""
    return [
        _written(act.PLUGIN, ActConfig(input_features=INPUTS, output_features=ACTION, **_ACT),
        folder / "a"),
        _written(
            diffusion.PLUGIN,
            DiffusionConfig(input_features=INPUTS, output_features=ACTION, **_DIFFUSION),
            folder / "d",
        ),
        _legacy(folder / "a", folder / "legacy.safetensors"),
        _sharded(folder / "a"),
    ]  # fmt: skip


def good_listener(folder: Path) -> Files:
    """Return a language-conditioned policy with its tokenizer, without its CLIP weights."""
    clip = write_clip(folder / "clip")
    config = DitConfig(
        input_features=INPUTS, output_features=ACTION, text_encoder_name=str(clip), **_DIT
    )
    return _written(dit.PLUGIN, config, folder / "listener")


def _written(plugin: Any, config: Any, folder: Path) -> Files:
    parts = fresh_policy(plugin, config, interface_of(Fake(FakeConfig()))).parts
    stats = {}
    for key, feature in {**INPUTS, **ACTION}.items():
        some = torch.linspace(0.1, 0.9, feature.shape[0])
        stats[key] = {"mean": some, "std": some + 1, "min": -some, "max": some + 2}
    pre, post = default_pipelines(config, stats, stats)
    write_checkpoint(replace(parts, preprocessor=pre, postprocessor=post), folder)
    found = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def _sharded(whole: Path) -> Files:
    files = {file.name: file.read_bytes() for file in whole.iterdir()}
    tensors = load(files.pop("model.safetensors"))
    places = {key: f"model-{number % 2}.safetensors" for number, key in enumerate(tensors)}
    for name in sorted(set(places.values())):
        files[name] = save({key: t for key, t in tensors.items() if places[key] == name})
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    return files


def _legacy(modern: Path, file: Path) -> Files:
    tensors = load_file(modern / "model.safetensors")
    for side, key in (("normalize_inputs", "observation_state"), ("unnormalize_outputs", "action")):
        for name in ("mean", "std"):
            tensors[f"{side}.buffer_{key}.{name}"] = torch.ones(2)
    save_file(tensors, file)
    config = (modern / "config.json").read_bytes()
    return {"config.json": config, "model.safetensors": file.read_bytes()}


@st.composite
def hostile_tensors(draw: Draw, valid: bytes) -> bytes:
    """Return an invalid safetensors file: wrong header, odd data, or another format."""
    length = int.from_bytes(valid[:8], "little")
    header, data = json.loads(valid[8 : 8 + length]), valid[8 + length :]
    how = draw(st.sampled_from(["header", "header", "length", "spoil", "names", "shape", "dtype"]))
    if how == "spoil":
        return draw(spoiled(valid))
    if how == "length":
        claimed = draw(st.sampled_from([0, 1, 8, length - 1, length + 1, 2**31, 2**63, 2**64 - 1]))
        return claimed.to_bytes(8, "little") + valid[8:]
    keys = sorted(header)
    key = keys[draw(st.integers(0, len(keys) - 1))]
    if how == "names":
        header[draw(texts)] = header.pop(key)
    elif how == "shape" and "shape" in header[key]:
        header[key]["shape"] = draw(st.lists(numbers, max_size=3))
    elif how == "dtype" and "dtype" in header[key]:
        kinds = ["F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", "X", "", None]
        header[key]["dtype"] = draw(st.sampled_from(kinds))
    else:
        header = draw(mutated(header))
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


PICKLE = f"cbuiltins\n__import__\n(S'{CANARY}'\ntR.".encode()
_NAMES = [
    "../x.safetensors", "/etc/passwd", "a/../../x.safetensors", "model.safetensors",
    "x\0.safetensors",
    "..", "", "x.pt", "link.safetensors", "~/x.safetensors", "a" * 300 + ".safetensors", 7, [],
    {"a": 1},
]  # fmt: skip


def folders(draw: Draw, sandbox: Sandbox) -> None:
    """``--policy.path`` of a hostile checkpoint folder."""
    valid = sandbox.checkpoints[draw(st.integers(0, len(sandbox.checkpoints) - 1))]
    files = dict(valid)
    for _ in range(draw(st.integers(1, 2))):
        _spoil_one(draw, files, valid)
    folder = sandbox.inputs / "checkpoint"
    write_files(folder, files)
    _plant(draw, folder, sandbox)
    extra = draw(
        st.sampled_from([[]] * 6 + [["--policy.n_action_steps=1"], ["--policy.device=cpu:9"]])
    )
    sandbox.run_command(
        ["eval", f"--policy.path={folder}", "--env.type=fake", "--eval.n_episodes=1", *extra]
    )


def listeners(draw: Draw, sandbox: Sandbox) -> None:
    """``--policy.path`` of a policy whose tokenizer, or the steps that lead to it, are hostile."""
    place = sandbox.root / "listener"
    if not place.exists():
        place.mkdir()
        sandbox.listener |= good_listener(place)
    files = dict(sandbox.listener)
    told = ["tokenizer/tokenizer.json"] * 3 + ["tokenizer/tokenizer_config.json"]
    name = draw(st.sampled_from([*told, "policy_preprocessor.json", "config.json"]))
    files[name] = draw(json_bytes(json.loads(files[name])))
    folder = sandbox.inputs / "checkpoint"
    write_files(folder, files)
    with mock.patch("proctor.system.hub.repositories.resolve", side_effect=OSError("no way there")):
        sandbox.run_command(
            ["eval", f"--policy.path={folder}", "--env.type=fake", "--eval.n_episodes=1"]
        )


def _spoil_one(draw: Draw, files: Files, valid: Files) -> None:
    name = draw(st.sampled_from(sorted(valid)))
    if name.endswith(".safetensors"):
        files[name] = draw(hostile_tensors(valid[name]))
    elif "processor" in name and not draw(st.integers(0, 3)):
        tree = json.loads(valid[name])
        step = draw(st.sampled_from(tree["steps"]))
        step["state_file"] = draw(st.sampled_from(_NAMES))
        files[name] = json.dumps(tree).encode()
    else:
        files[name] = draw(json_bytes(json.loads(valid[name])))
    if not draw(st.integers(0, 19)):
        del files[name]
        files[draw(st.sampled_from(["pytorch_model.bin", "model.pt", name]))] = PICKLE


def _plant(draw: Draw, folder: Path, sandbox: Sandbox) -> None:
    """Put a link, a folder or a pipe where a file should be, one time in ten."""
    (folder / "link.safetensors").symlink_to(sandbox.outside / "secret.mp4")
    if draw(st.integers(0, 9)):
        return
    place = folder / draw(
        st.sampled_from(["config.json", "model.safetensors", "policy_preprocessor.json"])
    )
    place.unlink(missing_ok=True)
    target = draw(st.sampled_from(["/dev/zero", "/dev/null", "folder", "fifo", "loop", "secret"]))
    if target == "folder":
        place.mkdir()
    elif target == "fifo":
        os.mkfifo(place)
    elif target == "loop":
        place.symlink_to(place)
    else:
        place.symlink_to(sandbox.outside / "secret.mp4" if target == "secret" else target)


_IDS = [
    "a/b",
    "../..",
    "..",
    "a/..",
    "a/b/c",
    "a/b\n",
    "-/-",
    "a/" + "b" * 300,
    "~x/y",
    "a//b",
    "/",
    "a/.b",
]


def hub(draw: Draw, sandbox: Sandbox) -> None:
    """Hub ids, revisions, Hub responses and the resulting folders."""
    from huggingface_hub import errors

    answers: list[Any] = [
        OSError("x\ny"), errors.LocalEntryNotFoundError("gone"),
        errors.HFValidationError("no id"), ConnectionError(""), TimeoutError(), None,
    ]  # fmt: skip
    answer = draw(st.sampled_from(answers))
    folder = sandbox.inputs / "snapshot" / "abcdef"
    write_files(folder, {"config.json": draw(st.sampled_from(BOMBS))})
    path = draw(st.one_of(st.sampled_from(_IDS), texts))
    said = ["eval", words(f"--policy.path={path}"), "--env.type=fake"]
    if draw(st.booleans()):
        said.append(words(f"--policy.revision={draw(texts)}"))
    reply = (
        mock.patch("proctor.policies.lerobot.checkpoint.location.download", return_value=folder)
        if answer is None
        else mock.patch("proctor.system.hub.repositories.resolve", side_effect=answer)
    )
    with reply:
        sandbox.run_command(said)
