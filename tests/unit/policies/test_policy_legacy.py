"""Checkpoints from before LeRobot 0.4: statistics between the weights, names without dots."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_policies import INPUTS, STATE, make_parts, small_diffusion
from tests.refusals import refuses

from proctor.errors import UsageError
from proctor.features import Feature, FeatureKind, NormMode
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.processors.processors import (
    Normalize,
    Rename,
    ToBatch,
    ToDevice,
    Unnormalize,
)

WRIST = "observation.images.wrist_cam"


@pytest.fixture
def legacy(tmp_path):
    """A Diffusion checkpoint as LeRobot 0.3 laid it out; a camera's name has underscores."""
    inputs = {STATE: INPUTS[STATE], WRIST: Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8")}
    parts = make_parts(small_diffusion(input_features=inputs))
    folder = tmp_path / "legacy"
    write_checkpoint(parts, folder)
    tensors = load_file(folder / "model.safetensors")
    normalize = parts.preprocessor.steps[3]
    for key in (STATE, WRIST, "action"):
        flat = key.replace(".", "_")
        names = ("mean", "std") if key == WRIST else ("min", "max")
        for name in names:
            value = normalize.stats[key][name].contiguous()
            if key == "action":
                tensors[f"normalize_targets.buffer_{flat}.{name}"] = value.clone()
                tensors[f"unnormalize_outputs.buffer_{flat}.{name}"] = value.clone()
            else:
                tensors[f"normalize_inputs.buffer_{flat}.{name}"] = value.clone()
    save_file(tensors, folder / "model.safetensors")
    for file in folder.glob("policy_*"):
        file.unlink()
    raw = json.loads((folder / "config.json").read_text())
    for key in ("type", "resize_shape", "crop_ratio", "compile_model", "compile_mode"):
        del raw[key]
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def test_statistics_are_found_by_the_configs_names(legacy):
    parts = read_checkpoint(legacy)
    assert set(parts.preprocessor.steps[3].stats) == {STATE, WRIST, "action"}
    assert set(parts.postprocessor.steps[0].stats) == {"action"}
    assert parts.config.type == "diffusion"
    assert any("states no type" in note for note in parts.notes)


def test_it_divides_by_the_span_plus_eps(legacy):
    normalize = read_checkpoint(legacy).preprocessor.steps[3]
    low, high = (normalize.stats[STATE][name] for name in ("min", "max"))
    x = torch.randn(2, 4)
    assert torch.equal(normalize({STATE: x})[STATE], (x - low) / (high - low + 1e-8) * 2 - 1)


def test_statistics_that_were_never_set_are_refused(legacy):
    tensors = load_file(legacy / "model.safetensors")
    tensors["normalize_inputs.buffer_observation_state.min"].fill_(float("inf"))
    save_file(tensors, legacy / "model.safetensors")
    with refuses(UsageError, "stats.invalid") as refused:
        read_checkpoint(legacy)
    assert "observation.state.min" in str(refused.value)


def test_statistics_of_no_feature_are_refused(legacy):
    tensors = load_file(legacy / "model.safetensors")
    tensors["normalize_inputs.buffer_observation_effort.min"] = torch.zeros(4)
    save_file(tensors, legacy / "model.safetensors")
    with refuses(UsageError, "checkpoint.unknown-feature"):
        read_checkpoint(legacy)


def test_compiled_names_are_accepted(legacy):
    tensors = load_file(legacy / "model.safetensors")
    renamed = {key.replace("unet.", "unet._orig_mod."): v for key, v in tensors.items()}
    save_file(renamed, legacy / "model.safetensors")
    read_checkpoint(legacy)


def test_old_style_statistic_names_are_accepted(legacy):
    tensors = load_file(legacy / "model.safetensors")
    for name in ("min", "max"):
        value = tensors.pop(f"normalize_inputs.buffer_observation_state.{name}")
        tensors[f"normalize_inputs.observation_state_{name}"] = value
    save_file(tensors, legacy / "model.safetensors")
    assert set(read_checkpoint(legacy).preprocessor.steps[3].stats[STATE]) == {"min", "max"}


def test_renaming_takes_the_padding_mask_along():
    step = Rename({"observation.image": "observation.images.top"})
    x = torch.zeros(1)
    renamed = step({"observation.image": x, "observation.image_is_pad": x, "action": x})
    assert list(renamed) == ["observation.images.top", "observation.images.top_is_pad", "action"]


def test_a_batch_axis_goes_before_what_has_none():
    seen = {
        STATE: torch.zeros(4),
        "observation.image": torch.zeros(3, 8, 8),
        "observation.images.top": torch.zeros(2, 3, 8, 8),
    }
    shapes = [tuple(value.shape) for value in ToBatch()(seen).values()]
    assert shapes == [(1, 4), (1, 3, 8, 8), (2, 3, 8, 8)]


def test_the_device_step_casts_floats_only():
    moved = ToDevice("cpu", "float16")(
        {"a": torch.zeros(1), "b": torch.zeros(1, dtype=torch.int64)}
    )
    assert moved["a"].dtype == torch.float16
    assert moved["b"].dtype == torch.int64


def test_a_list_of_keys_limits_what_is_normalised():
    features = {
        STATE: INPUTS[STATE],
        "action": Feature(FeatureKind.ACTION, (4,), "float32"),
        "observation.environment_state": Feature(FeatureKind.ENV, (4,), "float32"),
    }
    stats = {key: {"mean": torch.ones(4), "std": torch.ones(4)} for key in features}
    modes = dict.fromkeys(("STATE", "ENV", "ACTION"), NormMode.MEAN_STD)
    step = Normalize(1e-8, features, modes, normalize_observation_keys=[STATE], stats=stats)
    changed = step({key: torch.zeros(4) for key in features})
    assert [key for key, value in changed.items() if value.any()] == [STATE, "action"]


@pytest.mark.parametrize("mode", list(NormMode))
def test_unnormalising_undoes_normalising(mode):
    features = {"action": Feature(FeatureKind.ACTION, (4,), "float32")}
    names = ("mean", "std", "min", "max", "q01", "q99", "q10", "q90")
    stats = {"action": {name: torch.rand(4) + i for i, name in enumerate(names)}}
    there, back = (
        step(features=features, norm_map={"ACTION": mode}, stats=stats)
        for step in (Normalize, Unnormalize)
    )
    x = torch.randn(3, 4)
    torch.testing.assert_close(back(there({"action": x}))["action"], x, rtol=1e-4, atol=1e-5)
