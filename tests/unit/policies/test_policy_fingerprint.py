"""What a policy says of itself names it: files, resolved config, pipelines, numerics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_policies import OFFERED, small_act, small_diffusion, write_small
from tests.refusals import refuses

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.commands.evaluation.audit import run as audit
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.fingerprint import changed_fields
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.runtime.runner import numerics_record

NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_small(small_diffusion(), tmp_path / "checkpoint")


def protocol(folder: Path, **flags: Any) -> dict[str, Any]:
    """What the policy says of itself, as run.json holds it."""
    policy = load_policy(str(folder), None, {"device": "cpu", **flags}, OFFERED)
    written: dict[str, Any] = json.loads(json.dumps(policy.protocol()))
    return written


def changed(folder: Path, change: Callable[[], None], **flags: Any) -> list[str]:
    before = protocol(folder)
    change()
    return list(changed_fields(before, protocol(folder, **flags)))


def test_every_file_of_the_checkpoint_is_hashed(folder: Path) -> None:
    assert sorted(protocol(folder)["files"]) == sorted(file.name for file in folder.iterdir())


def test_changed_statistics_change_the_fingerprint(folder: Path) -> None:
    def change() -> None:
        stats = load_file(folder / NORMALIZER)
        stats["observation.state.min"] -= 1
        save_file(stats, folder / NORMALIZER)

    assert changed(folder, change) == [f"files.{NORMALIZER}"]


def test_an_edited_config_changes_the_fingerprint_by_its_field(folder: Path) -> None:
    def change() -> None:
        file = folder / "config.json"
        file.write_text(file.read_text().replace('"epsilon"', '"sample"'))

    assert changed(folder, change) == ["config.prediction_type", "files.config.json"]


def test_another_norm_map_changes_the_fingerprint_by_its_field(folder: Path) -> None:
    def change() -> None:
        file = folder / "policy_preprocessor.json"
        raw = json.loads(file.read_text())
        raw["steps"][3]["config"]["norm_map"]["STATE"] = "MEAN_STD"
        file.write_text(json.dumps(raw))

    assert changed(folder, change) == [
        "files.policy_preprocessor.json",
        "preprocessor.3_normalizer_processor.norm_map.STATE",
    ]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("clip_sample_range", 2.0),
        ("beta_schedule", "linear"),
        ("crop_shape", [48, 48]),
        ("num_inference_steps", 5),
        ("dtype", "bfloat16"),
        ("n_action_steps", 2),
    ],
)
def test_a_flag_of_the_policy_changes_the_fingerprint_by_its_field(
    folder: Path, flag: str, value: Any
) -> None:
    assert f"config.{flag}" in changed(folder, lambda: None, **{flag: value})


def test_tf32_and_the_torch_version_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    before = numerics_record(device, None)
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert list(changed_fields(before, numerics_record(device, None))) == ["torch"]
    before = numerics_record(device, None)
    allowed = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = not allowed
        assert list(changed_fields(before, numerics_record(device, None))) == [
            "float32.convolutions"
        ]
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert list(changed_fields(before, numerics_record(device, None))) == ["NVIDIA_TF32_OVERRIDE"]
    assert list(changed_fields(numerics_record(device, None), numerics_record(device, 16))) == [
        "pad_to"
    ]


def test_the_precision_of_products_changes_the_fingerprint_on_a_cpu_too() -> None:
    cpu, before = torch.device("cpu"), torch.get_float32_matmul_precision()
    exact = numerics_record(cpu, None)
    try:
        torch.set_float32_matmul_precision("medium")
        assert list(changed_fields(exact, numerics_record(cpu, None))) == ["float32.products"]
    finally:
        torch.set_float32_matmul_precision(before)
    assert numerics_record(cpu, None) == exact


def test_a_cpu_and_a_gpu_are_told_apart_and_strict_is_nothing_on_a_cpu() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert "device" in changed_fields(numerics_record(cpu, None), numerics_record(gpu, None))
    assert numerics_record(cpu, 16) == numerics_record(cpu, None)


def test_where_a_checkpoint_lies_and_how_it_is_called_is_no_part_of_it(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert protocol(tmp_path / "copy", device="auto" if not _gpu() else "cpu") == protocol(folder)
    assert protocol(folder, pad_to=16) == protocol(folder)


def test_untrained_networks_of_different_widths_are_told_apart() -> None:
    made = [
        plugins.find_policy("act").make(small_act(dim_model=width, device="cpu"), OFFERED)
        for width in (32, 64)
    ]
    narrow, wide = (policy.protocol() for policy in made)
    assert list(changed_fields(narrow, wide)) == ["config.dim_model"]


def _gpu() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def test_resume_and_audit_refuse_another_policy_and_say_which_field(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    benchmark, plugin = plugins.find_benchmark("fake"), plugins.find_policy("act")
    config = small_act(input_features={}, output_features={}, device="cpu")
    made: Any = plugin.make(config, interface_of(benchmark.make(benchmark.config(image_size=32))))
    path = tmp_path / "checkpoint"
    write_checkpoint(made.parts, path)
    flags = {
        "policy__type": "pretrained",
        "policy__path": str(path),
        "policy__device": "cpu",
        "env__image_size": 32,
        "env__episode_length": 4,
        "eval__use_async_envs": False,
        "eval__n_episodes": 1,
    }
    folder = run(**flags).path
    with pytest.raises(UsageError) as refused:
        run(**flags, output_dir=str(folder), resume=True, policy__n_action_steps=2)
    assert "--policy.n_action_steps" in str(refused.value)
    assert run(**{**flags, "eval__n_episodes": 2}, output_dir=str(folder), resume=True).complete
    assert audit([str(folder)]) == 0
    config_file = path / "config.json"
    config_file.write_text(config_file.read_text().replace('"relu"', '"gelu"'))
    with refuses(UsageError, "run.changed") as refused:
        audit([str(folder)])
    assert "feedforward_activation" in str(refused.value)
    with pytest.raises(UsageError) as refused:
        run(**flags, output_dir=str(folder), resume=True)
    assert "policy.files.config.json" in str(refused.value)
