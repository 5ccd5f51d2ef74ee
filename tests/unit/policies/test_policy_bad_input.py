"""Broken checkpoints: one line that says what, where and what to do; never half a policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_policies import OFFERED, small_act, small_diffusion, small_language_act, write_small
from tests.refusals import refuses

from proctor.errors import SpecMismatch, UsageError
from proctor.features import Feature, FeatureKind, NormMode
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.lerobot.processors.processors import Normalize
from proctor.policies.lerobot.processors.step_reader import check_stats

NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


@pytest.fixture
def folder(tmp_path):
    return write_small(small_act(), tmp_path / "checkpoint")


def refusal(folder, code, overrides=None, kind=UsageError) -> str:
    """Return the text of the error with ``code`` that loading the checkpoint raises."""
    with refuses(kind, code) as refused:
        load_policy(str(folder), None, {"device": "cpu", **(overrides or {})}, OFFERED)
    message = str(refused.value)
    assert "\n" not in message
    return message


def edit_json(file, **changes):
    raw = json.loads(file.read_text())
    raw.update(changes)
    file.write_text(json.dumps({k: v for k, v in raw.items() if v != "DELETE"}))


def edit_tensor(file, key, change):
    tensors = load_file(file)
    tensors[key] = change(tensors[key]).contiguous()
    save_file(tensors, file)


def spoil(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


def test_a_good_checkpoint_loads(folder):
    policy = load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    assert policy.spec.inputs == ("observation.state", "observation.image")
    assert not any(p.is_meta for p in policy.network.parameters())


def test_no_config(folder):
    (folder / "config.json").unlink()
    assert str(folder) in refusal(folder, "checkpoint.not-found")


def test_the_folder_above(folder):
    folder.rename(folder.parent / "pretrained_model")
    message = refusal(folder.parent, "checkpoint.not-found")
    assert f"{folder.parent}/pretrained_model" in message


def test_no_such_folder(tmp_path):
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere", "checkpoint.not-found")


def test_broken_json(folder):
    (folder / "config.json").write_text('{"type": "act"')
    assert "config.json" in refusal(folder, "checkpoint.unreadable")


def test_an_unknown_type_lists_the_known(folder):
    edit_json(folder / "config.json", type="actt")
    message = refusal(folder, "policy.unknown-type")
    assert "'actt'" in message
    assert "'act'" in message
    assert "diffusion" in message


def test_a_family_that_is_elsewhere_is_named_with_what_to_do(folder):
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"type": "wall_x"}))
    assert "--policy.type=remote" in refusal(folder, "policy.unknown-type")


def test_no_type_and_no_telling_fields(folder):
    edit_json(folder / "config.json", type="DELETE", n_vae_encoder_layers="DELETE")
    assert "diffusion" in refusal(folder, "policy.unknown-type")


def test_a_value_of_the_wrong_type(folder):
    edit_json(folder / "config.json", chunk_size="many")
    assert "chunk_size" in refusal(folder, "checkpoint.invalid-config")


def test_unknown_keys_are_tolerated_with_a_note(folder):
    edit_json(folder / "config.json", from_the_future=1)
    policy = load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    assert any("from_the_future" in note for note in policy.spec.notes)


def test_missing_keys_are_noted(folder):
    edit_json(folder / "config.json", kl_weight="DELETE")
    policy = load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    assert any("kl_weight" in note for note in policy.spec.notes)


def test_truncated_weights(folder):
    file = folder / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-100])
    message = refusal(folder, "checkpoint.damaged")
    assert str(size) in message
    assert str(size - 100) in message


@pytest.mark.parametrize("name", ["feature_norm", "qk_norm"])
def test_weights_that_proctors_own_config_does_not_describe(tmp_path, name):
    folder = write_small(small_language_act(), tmp_path / "checkpoint")
    edit_json(folder / "config.json", **{name: "DELETE"})
    message = refusal(folder, "checkpoint.unused-tensors")
    assert str(folder / "config.json") in message


def test_garbage_weights(folder):
    (folder / "model.safetensors").write_bytes(b"abc")
    assert "model.safetensors" in refusal(folder, "checkpoint.damaged")


def test_a_wrong_shape_names_key_expected_and_found(folder):
    edit_tensor(folder / "model.safetensors", "model.action_head.weight", lambda t: t[:2])
    message = refusal(folder, "checkpoint.shape-mismatch")
    assert all(word in message for word in ("model.action_head.weight", "[3, 32]", "[2, 32]"))


def test_a_missing_key(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.action_head.bias"]
    save_file(tensors, folder / "model.safetensors")
    assert "model.action_head.bias" in refusal(folder, "checkpoint.missing-tensor")


def test_weights_of_another_config(folder):
    edit_json(folder / "config.json", dim_model=64)
    refusal(folder, "checkpoint.shape-mismatch")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_in_the_weights(folder, value):
    edit_tensor(folder / "model.safetensors", "model.action_head.bias", spoil(value))
    assert "model.action_head.bias" in refusal(folder, "checkpoint.not-finite")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_statistics_that_are_no_standard_deviation(folder, value):
    edit_tensor(folder / NORMALIZER, "observation.state.std", spoil(value))
    assert "observation.state.std" in refusal(folder, "stats.invalid")


@pytest.mark.parametrize(
    ("mode", "low", "high"), [("MIN_MAX", "min", "max"), ("QUANTILES", "q01", "q99")]
)
def test_bounds_in_the_wrong_order(mode, low, high):
    feature = Feature(FeatureKind.STATE, (2,), "float32")
    stats = {"x": {low: torch.tensor([0.0, 1.0]), high: torch.tensor([0.0, 1.0 - 1e-7])}}
    step = Normalize(features={"x": feature}, norm_map={"STATE": NormMode[mode]}, stats=stats)
    check_stats(step, "here")  # rounding
    stats["x"][high][1] = -1.0
    with refuses(UsageError, "stats.invalid"):
        check_stats(step, "here")


def test_statistics_that_are_missing(folder):
    tensors = load_file(folder / NORMALIZER)
    del tensors["observation.state.std"]
    save_file(tensors, folder / NORMALIZER)
    assert "observation.state.std" in refusal(folder, "stats.missing")


def test_a_missing_state_file(folder):
    (folder / NORMALIZER).unlink()
    assert NORMALIZER in refusal(folder, "checkpoint.missing-file")


@pytest.mark.parametrize("left", ["policy_post*", "policy_pre*", ""])
def test_a_checkpoint_without_its_processor_files_is_refused(folder, left):
    kept = set(folder.glob(left)) if left else set()
    for file in set(folder.glob("policy_*")) - kept:
        file.unlink()
    if left:
        assert "processor.json" in refusal(folder, "checkpoint.missing-file")
    else:
        assert "observation.state" in refusal(folder, "checkpoint.missing-pipelines")


def test_a_checkpoint_that_normalises_nothing_needs_no_processor_files(tmp_path):
    identity = dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormMode.IDENTITY)
    folder = write_small(small_act(normalization_mapping=identity), tmp_path / "plain")
    for file in folder.glob("policy_*"):
        file.unlink()
    load_policy(str(folder), None, {"device": "cpu"}, OFFERED)


def test_statistics_that_were_never_written_are_noted(folder):
    pipeline = folder / "policy_preprocessor.json"
    steps = json.loads(pipeline.read_text())["steps"]
    del steps[3]["state_file"]
    edit_json(pipeline, steps=steps)
    policy = load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    note = "no statistics for observation.state, observation.image"
    assert any(note in line for line in policy.spec.notes)
    edit_json(pipeline, steps=steps[:3])  # without a step for them, too
    policy = load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    assert any(note in line for line in policy.spec.notes)


def test_an_unknown_step_is_named(folder):
    file = folder / "policy_preprocessor.json"
    raw = json.loads(file.read_text())
    raw["steps"].insert(2, {"registry_name": "molmoact2_processor", "config": {}})
    file.write_text(json.dumps(raw))
    assert "'molmoact2_processor'" in refusal(folder, "checkpoint.unknown-step")


def test_an_unknown_setting_of_a_step_is_named(folder):
    file = folder / "policy_preprocessor.json"
    raw = json.loads(file.read_text())
    raw["steps"][3]["config"]["clip"] = True
    file.write_text(json.dumps(raw))
    assert "'clip'" in refusal(folder, "checkpoint.unsupported-step")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_a_pickle_beside_no_safetensors_is_refused(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    assert name in refusal(folder, "checkpoint.missing-file")


def test_a_pickle_in_disguise_is_refused(folder):
    torch.save({"a": torch.zeros(1)}, folder / "model.safetensors")
    refusal(folder, "checkpoint.pickle")


def test_an_adapter_is_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "adapter_config.json").write_text("{}")
    assert "PEFT adapter" in refusal(folder, "checkpoint.missing-file")


def test_an_unreachable_hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "someone/some-policy" in refusal("someone/some-policy", "hub.unreachable")


def test_a_revision_is_for_the_hub(folder):
    with refuses(UsageError, "checkpoint.revision-of-folder"):
        load_policy(str(folder), "main", {"device": "cpu"}, OFFERED)


@pytest.mark.parametrize(
    ("overrides", "code", "named"),
    [
        ({"n_action_step": 2}, "flag.unknown", "'n_action_steps'"),
        ({"n_action_steps": 7}, "policy.out-of-range", "n_action_steps"),
        ({"n_action_steps": 0}, "policy.out-of-range", "n_action_steps"),
        ({"temporal_ensemble_coeff": 0.1}, "policy.conflict", "--policy.n_action_steps=1"),
        ({"dtype": "int8"}, "policy.unknown-choice", "--policy.dtype"),
        ({"device": "tpu"}, "policy.unknown-device", "cpu, cuda, mps, auto"),
        ({"dim_model": "x"}, "flag.invalid-value", "dim_model"),
        ({"vision_backbone": "vit"}, "policy.unknown-choice", "vision_backbone"),
    ],
)
def test_bad_overrides(folder, overrides, code, named):
    assert named in refusal(folder, code, overrides)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"horizon": 10}, "policy.not-divisible"),
        ({"n_action_steps": 8}, "policy.out-of-range"),
        ({"beta_schedule": "cosine"}, "policy.unknown-choice"),
        ({"prediction_type": "v"}, "policy.unknown-choice"),
        ({"noise_scheduler_type": "EDM"}, "policy.unknown-choice"),
        ({"num_inference_steps": 11}, "policy.out-of-range"),
        ({"crop_shape": [65, 10]}, "policy.crop-too-large"),
    ],
)
def test_bad_diffusion_configs(tmp_path, changes, code):
    folder = write_small(small_diffusion(), tmp_path / "checkpoint")
    edit_json(folder / "config.json", **changes)
    assert next(iter(changes)) in refusal(folder, code)


def test_a_missing_camera_names_the_flag(folder, monkeypatch):
    rename = {"observation.image": "observation.images.top"}
    file = folder / "config.json"
    file.write_text(file.read_text().replace("observation.image", "observation.images.top"))
    message = refusal(folder, "policy.missing-input", kind=SpecMismatch)
    assert '--rename_map=\'{"observation.image": "observation.images.top"}\'' in message
    policy = load_policy(str(folder), None, {"device": "cpu", "rename_map": rename}, OFFERED)
    assert policy.spec.inputs == ("observation.state", "observation.image")


@pytest.mark.parametrize("pad", range(64))
def test_a_header_whose_length_looks_like_a_pickle_is_read_all_the_same(
    tmp_path: Path, pad: int
) -> None:
    """The first byte of a safetensors file is the low byte of its header's length: any of 32."""
    tensors = {"weight": torch.zeros(1)}
    file = tmp_path / "model.safetensors"
    save_file(tensors, file, metadata={"pad": "x" * 8 * pad})
    assert read_tensors(file).keys() == tensors.keys()
