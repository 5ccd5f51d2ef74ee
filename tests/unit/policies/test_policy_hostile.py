"""What fuzzing checkpoints found (tests/fuzz), each case by name: one line, nothing allocated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_policies import OFFERED, small_act, small_diffusion, write_small
from tests.refusals import refuses

from proctor.errors import UsageError
from proctor.policies.act.config import PLUGIN as ACT
from proctor.policies.diffusion.config import PLUGIN as DIFFUSION
from proctor.policies.lerobot.checkpoint.checkpoint import fresh_policy, load_policy
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.runtime.runner import pick_device

NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_small(small_act(), tmp_path / "checkpoint")


def refusal(folder: Any, code: str) -> str:
    """Return the text of the error with ``code`` that loading the checkpoint raises."""
    with refuses(UsageError, code) as refused:
        load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    return str(refused.value)


def edit(file: Path, change: Any) -> None:
    tree = json.loads(file.read_text())
    change(tree)
    file.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x.pt", 7, "a\0.safetensors"],
)
def test_a_state_file_elsewhere_is_refused(folder: Path, name: Any) -> None:
    edit(folder / "policy_preprocessor.json", lambda t: t["steps"][3].update({"state_file": name}))
    assert repr(name) in refusal(folder, "checkpoint.invalid-pipeline")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"steps": {"a": 1}}, "checkpoint.invalid-pipeline"),
        ({"steps": [{}] * 10_000}, "checkpoint.invalid-pipeline"),
        (
            {"steps": [{"registry_name": "to_batch_processor", "config": 3}]},
            "checkpoint.invalid-pipeline",
        ),
        (
            {"steps": [{"registry_name": "device_processor", "config": {"float_dtype": "load"}}]},
            "checkpoint.unsupported-step",
        ),
        (
            {"steps": [{"registry_name": "normalizer_processor", "config": {"eps": 1e300}}]},
            "checkpoint.invalid-pipeline",
        ),
        (
            {
                "steps": [
                    {"registry_name": "normalizer_processor", "config": {"features": "\ud800"}}
                ]
            },
            "checkpoint.invalid-pipeline",
        ),
        (
            {
                "steps": [
                    {"registry_name": "absolute_actions_processor", "config": {"enabled": True}}
                ]
            },
            "checkpoint.invalid-pipeline",
        ),
    ],
)
def test_a_pipeline_of_another_shape_is_refused(
    folder: Path, change: dict[str, Any], code: str
) -> None:
    edit(folder / "policy_preprocessor.json", lambda tree: tree.update(change))
    refusal(folder, code)


def test_steps_that_actions_do_not_go_through_are_refused_before_anything_begins(
    folder: Path,
) -> None:
    turned = {"registry_name": "xvla_rotation_6d_to_axis_angle"}
    edit(folder / "policy_postprocessor.json", lambda tree: tree["steps"].append(turned))
    refusal(folder, "checkpoint.pipeline-mismatch")


def test_a_picture_that_would_be_normalised_as_a_state_is_refused(folder: Path) -> None:
    renamed = {"rename_map": {"observation.image": "observation.state"}}
    step = {"registry_name": "rename_observations_processor", "config": renamed}
    edit(folder / "policy_preprocessor.json", lambda tree: tree["steps"].insert(1, step))
    refusal(folder, "checkpoint.pipeline-mismatch")


@pytest.mark.parametrize("name", ["config.json", "policy_preprocessor.json"])
def test_json_as_deep_as_the_stack_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text('{"a":' * 100_000)
    assert name in refusal(folder, "checkpoint.unreadable")


def test_a_config_that_never_ends_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "config.json" in refusal(folder, "checkpoint.not-found")


@pytest.mark.parametrize("kind", [["act"], {"a": 1}, 3])
def test_a_type_that_is_no_name_is_refused(folder: Path, kind: Any) -> None:
    edit(folder / "config.json", lambda tree: tree.update({"type": kind}))
    refusal(folder, "policy.unknown-type")


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("dim_model", 10**12, "policy.out-of-range"),
        ("dim_model", 0, "policy.out-of-range"),
        ("n_heads", 0, "policy.out-of-range"),
        ("n_heads", 3, "policy.not-divisible"),
        ("n_encoder_layers", 10**9, "policy.out-of-range"),
        ("n_decoder_layers", -1, "policy.out-of-range"),
        ("chunk_size", 10**12, "policy.out-of-range"),
        ("dim_feedforward", -5, "policy.out-of-range"),
        ("n_obs_steps", 10**12, "policy.out-of-range"),
    ],
)
def test_sizes_that_no_act_has_are_refused(folder: Path, field: str, value: int, code: str) -> None:
    edit(folder / "config.json", lambda tree: tree.update({field: value}))
    assert field in refusal(folder, code)
    with refuses(UsageError, code) as refused:
        fresh_policy(ACT, small_act(**{field: value}), OFFERED)
    assert field in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("down_dims", []),
        ("down_dims", [10**9, 8]),
        ("down_dims", [10, 16]),
        ("n_groups", 0),
        ("num_train_timesteps", 0),
        ("num_train_timesteps", 10**12),
        ("diffusion_step_embed_dim", 3),
        ("horizon", 2**40),
        ("kernel_size", 10**6),
        ("resize_shape", [10**6, 10**6]),
    ],
)
def test_sizes_that_no_diffusion_has_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError) as refused:
        fresh_policy(DIFFUSION, small_diffusion(**{field: value}), OFFERED)
    assert refused.value.code in (
        "policy.out-of-range",
        "policy.not-divisible",
        "policy.invalid-shape",
    )
    assert field in str(refused.value)


@pytest.mark.parametrize("shape", [[], [0], [4, 4], [10**12]])
def test_a_state_that_is_no_vector_is_refused(folder: Path, shape: list[int]) -> None:
    def change(tree: Any) -> None:
        tree["input_features"]["observation.state"]["shape"] = shape

    edit(folder / "config.json", change)
    assert "observation.state" in refusal(folder, "policy.invalid-shape")


def test_a_layer_that_torch_cannot_build_is_named() -> None:
    with refuses(UsageError, "policy.cannot-build"):
        fresh_policy(
            DIFFUSION,
            small_diffusion(beta_schedule="scaled_linear", beta_start=-1.0),
            OFFERED,
        )


def test_statistics_that_do_not_fit_their_feature_are_refused(folder: Path) -> None:
    tensors = load_file(folder / NORMALIZER)
    tensors["observation.state.mean"] = torch.zeros(7)
    save_file(tensors, folder / NORMALIZER)
    assert "observation.state.mean" in refusal(folder, "stats.shape-mismatch")


def test_complex_statistics_are_refused(folder: Path) -> None:
    tensors = load_file(folder / NORMALIZER)
    tensors["observation.state.mean"] = torch.zeros(4, dtype=torch.complex64)
    save_file(tensors, folder / NORMALIZER)
    refusal(folder, "stats.invalid")


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [10**12, 10**6], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**62]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": "x"}},
        {"a": 3},
        [],
    ],
)
def test_a_header_that_lies_is_one_line(tmp_path: Path, header: Any) -> None:
    text = json.dumps(header).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with refuses(UsageError, "checkpoint.damaged"):
        read_tensors(file)


@pytest.mark.parametrize(
    "path", ["../..", "a/..", "a/b\n", "~no_such_user_here/x", "a" * 5000, "\0"]
)
def test_what_is_neither_a_path_nor_a_hub_id_is_refused_without_asking(path: str) -> None:
    refusal(path, "checkpoint.not-found")


@pytest.mark.parametrize("name", ["cuda:99999999999999999999", "cpu:²", "cpu:x", "cuda:-1"])
def test_a_device_number_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        pick_device(name)
    assert refused.value.code in ("policy.unknown-device", "policy.device-unavailable")


def test_a_name_that_is_no_text_is_refused_in_one_line() -> None:
    from proctor.policies.act.config import ActConfig
    from proctor.policies.lerobot.config.config import decode_config

    features = {"observation.state": {"type": "\udcff", "shape": [2]}}
    with refuses(UsageError, "checkpoint.invalid-config"):
        decode_config({"input_features": features}, ActConfig, "config.json")
