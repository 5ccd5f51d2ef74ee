"""Fuzzing of large policy families: adapters, sharded weights, pipelines and prompts.

The large networks are not built. The files that are read before them are, from LeRobot's tiny
versions (tests/golden/data).
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from safetensors.torch import load, save

from proctor.errors import ProctorError
from proctor.features import ACTION
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import source_key
from proctor.policies.lerobot.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint, read_config
from proctor.policies.lerobot.config.feature_json import channels_first
from proctor.policies.lerobot.processors.pipelines import read_pipelines, restrict_features
from proctor.policies.runtime.chunk_policy import dry_run_steps
from proctor.policies.runtime.prompts import InstructionEncoder
from tests.fuzz.checkpoints import PICKLE, hostile_tensors
from tests.fuzz.hostile import Draw, json_bytes, mutated, texts
from tests.fuzz.runs import Files, write_files
from tests.fuzz.sandbox import Sandbox

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
INDEX = "model.safetensors.index.json"
_SHARDS = [
    "../x.safetensors", "/etc/passwd", "model-0.safetensors", "link.safetensors", "x\0.safetensors",
    "none.safetensors", "model-0.bin", "", "..", "a/b.safetensors", "a" * 300 + ".safetensors",
    ["model-0.safetensors"], INDEX, "config.json", 7, None,
]  # fmt: skip


def shards(draw: Draw, sandbox: Sandbox) -> None:
    """``--policy.path`` of weights in several files, of which the index or a file is hostile."""
    valid = next(files for files in sandbox.checkpoints if INDEX in files)
    files, index = dict(valid), json.loads(valid[INDEX])
    how = draw(
        st.sampled_from(["json", "places", "places", "tensors", "missing", "pickle", "both"])
    )
    if how == "json":
        files[INDEX] = draw(json_bytes(index))
    elif how == "places":
        for key in draw(st.lists(st.sampled_from(sorted(index["weight_map"])), max_size=3)):
            index["weight_map"][key] = draw(st.one_of(st.sampled_from(_SHARDS), texts))
        if draw(st.booleans()):
            index["weight_map"][draw(texts)] = draw(st.sampled_from(_SHARDS))
        files[INDEX] = json.dumps(index).encode()
    elif how == "tensors":
        name = draw(st.sampled_from(["model-0.safetensors", "model-1.safetensors"]))
        files[name] = draw(hostile_tensors(valid[name]))
    elif how == "both":
        files["model.safetensors"] = draw(hostile_tensors(valid["model-0.safetensors"]))
    else:
        files["model-1.safetensors"] = PICKLE
        if how == "missing":
            del files["model-1.safetensors"]
    folder = sandbox.inputs / "checkpoint"
    write_files(folder, files)
    (folder / "link.safetensors").symlink_to(sandbox.outside / "secret.mp4")
    sandbox.run_command(
        ["eval", f"--policy.path={folder}", "--env.type=fake", "--eval.n_episodes=1"]
    )


@cache
def good_adapter(base: Path) -> Files:
    """Return an adapter of two layers for the policy in ``base``."""
    files = {file.name: file.read_bytes() for file in base.iterdir()}
    weights = load(files.pop("model.safetensors"))
    config = json.loads(files["config.json"]) | {"use_peft": True}
    matrices = [key for key in sorted(weights) if weights[key].dim() == 2][:2]
    tensors = {}
    for key in matrices:
        rows, columns = weights[key].shape
        layer = f"base_model.model.{key.removesuffix('.weight')}"
        tensors[f"{layer}.lora_A.weight"] = torch.ones(2, columns)
        tensors[f"{layer}.lora_B.weight"] = torch.ones(rows, 2)
    told = {
        "peft_type": "LORA", "base_model_name_or_path": str(base), "revision": None, "r": 2,
        "lora_alpha": 4, "lora_dropout": 0.0, "use_rslora": False, "bias": "none",
        "modules_to_save": None, "init_lora_weights": True, "target_modules": "(a+)+$",
        "task_type": None, "auto_mapping": {"base_model_class": "os", "parent_library": "os"},
        "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    }  # fmt: skip
    files["config.json"] = json.dumps(config).encode()
    files[ADAPTER_CONFIG], files[ADAPTER_WEIGHTS] = json.dumps(told).encode(), save(tensors)
    return files


def adapters(draw: Draw, sandbox: Sandbox) -> None:
    """``--policy.path`` of an adapter that is hostile, or for a base that is none; and training."""
    valid = good_adapter(sandbox.root / "checkpoints" / "a")
    files, folder = dict(valid), sandbox.inputs / "adapter"
    for _ in range(draw(st.integers(1, 2))):
        how = draw(st.sampled_from(["config", "config", "config", "tensors", "tensors", "base"]))
        if how == "config":
            files[ADAPTER_CONFIG] = draw(json_bytes(json.loads(valid[ADAPTER_CONFIG])))
        elif how == "tensors":
            files[ADAPTER_WEIGHTS] = draw(hostile_tensors(valid[ADAPTER_WEIGHTS]))
        else:
            told = json.loads(valid[ADAPTER_CONFIG])
            bases = [str(folder), str(sandbox.outside), "../..", "/dev", "/proc/self", "a/b", ".."]
            told["base_model_name_or_path"] = draw(st.one_of(st.sampled_from(bases), texts))
            files[ADAPTER_CONFIG] = json.dumps(told).encode()
    if not draw(st.integers(0, 19)):
        del files[ADAPTER_WEIGHTS]
        files["adapter_model.bin"] = PICKLE
    write_files(folder, files)
    with _no_hub():
        sandbox.run_command(
            ["eval", f"--policy.path={folder}", "--env.type=fake", "--eval.n_episodes=1"]
        )
        _judged(sandbox, lambda: read_checkpoint(folder, use=ConfigUse.TRAINING), "train")


@cache
def good_families() -> dict[str, Files]:
    """Return configs, pipelines and tokenizers of each family, which are read first."""
    words, codes = "tokenizer", "action_tokenizer"
    pi, xvla, smol, dit = (GOLDEN / n for n in ("pi_runs", "xvla_run", "smolvla_run", "dit_run"))
    places = {
        "pi0": (pi / "pi0", {words: pi / "words"}),
        "pi05": (pi / "pi05", {words: pi / "words"}),
        "pi0_fast": (pi / "pi0_fast", {words: pi / "words", codes: pi / "codes"}),
        "xvla": (xvla / "ee6d", {words: xvla / "tokenizer"}),
        "xvla, any action": (xvla / "auto", {words: xvla / "tokenizer"}),
        "smolvla": (smol, {words: smol / "vlm"}),
        "multi_task_dit": (dit / "flow", {words: dit / "clip"}),
    }
    return {name: _files(folder, inner) for name, (folder, inner) in places.items()}


def _files(folder: Path, inner: dict[str, Path]) -> Files:
    named = [*folder.glob("policy_*"), folder / "config.json"]
    files = {file.name: file.read_bytes() for file in named}
    config = json.loads(files["config.json"])
    if config["type"] == "pi0_fast":  # as it is published; the tiny one has tiny pictures
        files["config.json"] = json.dumps(config | {"image_resolution": [224, 224]}).encode()
    for name, place in inner.items():
        files |= {f"{name}/{file.name}": file.read_bytes() for file in place.glob("*.json")}
    return files


def pipelines(draw: Draw, sandbox: Sandbox) -> None:
    """Hostile pipelines of a large family: loaded, and applied to observations and actions."""
    good = good_families()
    valid = good[draw(st.sampled_from(sorted(good)))]
    files = dict(valid)
    for _ in range(draw(st.integers(1, 2))):
        kinds = ["policy_preprocessor.json"] * 6 + ["policy_postprocessor.json"] * 3
        name = draw(st.sampled_from([*kinds, *sorted(valid)]))
        if name.endswith(".safetensors"):
            files[name] = draw(hostile_tensors(valid[name]))
        elif name.startswith("policy_") and draw(st.booleans()):
            files[name] = json.dumps(draw(_other_steps(json.loads(valid[name])))).encode()
        else:
            files[name] = draw(json_bytes(json.loads(valid[name])))
    folder = sandbox.inputs / "checkpoint"
    write_files(folder, files)
    with _no_hub():
        _judged(sandbox, lambda: _heard_and_played(folder), "pipelines")


@st.composite
def _other_steps(draw: Draw, pipeline: Any) -> Any:
    """Return a pipeline with foreign, reordered, repeated or unconfigured steps."""
    steps = pipeline["steps"]
    found = [
        json.loads(each["policy_preprocessor.json"])["steps"] for each in good_families().values()
    ]
    found += [
        json.loads(each["policy_postprocessor.json"])["steps"] for each in good_families().values()
    ]
    every = [step for each in found for step in each] + [
        {"registry_name": "xvla_image_scale"},
        {"registry_name": "xvla_rotation_6d_to_axis_angle"},
        {"registry_name": "absolute_actions_processor", "config": {"enabled": True}},
        {"registry_name": "relative_actions_processor", "config": {"enabled": True}},
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {
            "observation.state": "observation.images.top", "x": "observation.state"}}},
    ]  # fmt: skip
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(steps)))
        how = draw(st.sampled_from(["put in", "put in", "leave out", "again", "change"]))
        if how == "put in" or at == len(steps):
            steps.insert(at, draw(st.sampled_from(every)))
        elif how == "leave out":
            del steps[at]
        elif how == "again":
            steps.append(steps[at])
        else:
            steps[at] = draw(mutated(steps[at]))
    return pipeline


def _heard_and_played(folder: Path) -> None:
    """Use pipelines as an evaluation does, without a network."""
    _, config, _ = read_config(folder)
    pre, post = read_pipelines(folder, config)
    renames = pre.rename_map
    pre, post = (restrict_features(pipeline, config.features) for pipeline in (pre, post))
    instruction_encoder = InstructionEncoder(config, pre)
    dry_run_steps(config, pre, post, instruction_encoder)
    shown = {source_key(key, renames): f for key, f in config.input_features.items()}
    seen = {key: torch.zeros(2, *channels_first(f)) for key, f in shown.items()}
    instruction_encoder(
        ["push the puck", "a" * 300], {key: seen[key] for key in instruction_encoder.needs}
    )
    pre.on(torch.device("cpu"))(seen)
    behind = {key: seen[source_key(key, renames)] for key in post.needs}
    post.on(torch.device("cpu"))({ACTION: torch.zeros(2, 3, config.action_dim), **behind})


def _no_hub() -> Any:
    return mock.patch(
        "proctor.system.hub.repositories.resolve", side_effect=OSError("no way there")
    )


def _judged(sandbox: Sandbox, do: Any, what: str) -> None:
    """Run Python code in the sandbox; it may raise one of Proctor's errors.

    Its text may be long and have odd letters: it loses them where a command prints it.
    """
    with sandbox.watched(what), suppress(ProctorError):
        do()
