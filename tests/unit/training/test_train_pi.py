"""Training of pi0, pi0.5 and pi0-FAST: all weights, expert only or adapters; exact resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_pi import N_WORDS, RUNS, tiny_sizes

from .builders import RUN, files_of, needs_peft, words, write_seen
from .test_peft import LAST, Killed, kill_at, train
from .test_train_smolvla import changed

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
import torch
from safetensors.torch import load_file

from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.processors.relative_actions import AbsoluteActions, RelativeActions

needs_peft()

pytestmark = pytest.mark.vla
SHORT = RUN | {"steps": 4, "save_freq": 2, "num_workers": 0}
MODEL = "model.paligemma_with_expert."
LANGUAGE, VISION = (
    f"{MODEL}paligemma.model.language_model.",
    f"{MODEL}paligemma.model.vision_tower.",
)
EXPERT = f"{MODEL}gemma_expert.model."
OWN = {
    "pi0": {"policy.num_inference_steps": 2},
    "pi05": {"policy.num_inference_steps": 2},
    "pi0_fast": {
        "policy.max_decoding_steps": 6,
        "policy.action_tokenizer_name": RUNS / "codes",
    },
}


def small(kind: str) -> dict[str, object]:
    return {
        "policy.type": kind,
        "policy.tokenizer": RUNS / "words",
        "policy.chunk_size": 4,
        "policy.n_action_steps": 4,
        "policy.max_state_dim": 4,
        "policy.max_action_dim": 4,
        "policy.image_resolution": "[28,28]",
        "policy.tokenizer_max_length": 24,
        "policy.optimizer_lr": 1e-2,
        "policy.device": "cpu",
        **OWN[kind],
    }


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_sizes(vocabulary=N_WORDS):
        yield


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Path:
    return write_seen(tmp_path_factory.mktemp("data") / "seen")


@pytest.fixture(scope="module")
def bases(tiny, seen, tmp_path_factory):
    """A policy of each family after two steps, made on demand."""

    class Bases(dict[str, Path]):
        def __missing__(self, kind: str) -> Path:
            folder = tmp_path_factory.mktemp("base") / kind
            train(*words(seen, folder, small(kind), SHORT, {"steps": 2}))
            self[kind] = folder / LAST
            return self[kind]

    return Bases()


def both_ways(data: Path, folder: Path, how: dict[str, object], monkeypatch) -> Path:
    """Train once uninterrupted and once resumed; check that both are equal and return one."""
    train(*words(data, folder / "whole", SHORT, how))
    with monkeypatch.context() as patch:
        kill_at(patch, 3)
        with pytest.raises(Killed):
            train(*words(data, folder / "killed", SHORT, how))
    train("--resume", f"--output_dir={folder / 'killed'}")
    whole, killed = (folder / name / "checkpoints/000004" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    return whole / "pretrained_model"


@pytest.mark.parametrize("kind", ["pi0", "pi05", "pi0_fast"])
def test_a_killed_training_ends_with_the_same_bits(seen, bases, tmp_path, monkeypatch, kind):
    how = {
        "policy.path": bases[kind],
        "policy.device": "cpu",
        "policy.gradient_checkpointing": "true",
    }
    trained = both_ways(seen, tmp_path, how, monkeypatch)
    for part in (LANGUAGE, VISION, *([] if kind == "pi0_fast" else [EXPERT])):
        assert changed(bases[kind], trained, part)
    names = load_file(trained / "model.safetensors")
    assert names.keys() == load_file(bases[kind] / "model.safetensors").keys()
    assert (trained / "tokenizer" / "tokenizer.json").is_file(), "it runs where there is no Hub"
    assert (trained / "action_tokenizer").is_dir() is (kind == "pi0_fast")


def test_the_expert_learns_alone_where_that_is_asked_for(seen, bases, tmp_path):
    how = {"policy.path": bases["pi0"], "policy.device": "cpu", "policy.train_expert_only": "true"}
    train(*words(seen, tmp_path / "run", SHORT, how, {"steps": 2}))
    trained = tmp_path / "run" / LAST
    assert changed(bases["pi0"], trained, EXPERT)
    assert not changed(bases["pi0"], trained, f"{MODEL}paligemma.")


@pytest.mark.parametrize("kind", ["pi0", "pi0_fast"])
def test_a_killed_adaptation_ends_with_the_same_bits(seen, bases, tmp_path, monkeypatch, kind):
    how = {"policy.path": bases[kind], "policy.device": "cpu", "peft.r": 2, "optimizer.lr": 1e-2}
    if kind == "pi0_fast":  # LeRobot chooses no layers for it
        how["peft.target_modules"] = "[q_proj,v_proj]"
    trained = both_ways(seen, tmp_path, how, monkeypatch)
    names = load_file(trained / "adapter_model.safetensors")
    layers = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in names}
    if kind == "pi0":
        assert layers == {
            *(f"{EXPERT}layers.{n}.self_attn.{which}_proj" for n in (0, 1) for which in "qv"),
            *(f"model.{name}_proj" for name in ("state", "action_in", "action_out")),
            *(f"model.action_time_mlp_{which}" for which in ("in", "out")),
        }
    assert any(value.abs().max() > 0 for name, value in names.items() if ".lora_B." in name)


def test_another_robots_cameras_and_numbers_take_the_place_of_the_bases(bases, tmp_path):
    other = write_seen(tmp_path / "other", key="observation.images.front", side=24, numbers=3)
    how = {"policy.path": bases["pi0"], "policy.device": "cpu", "batch_size": 2}
    how["rename_map"] = '{"observation.images.front": "observation.images.top"}'
    train(*words(other, tmp_path / "run", SHORT, {"steps": 2}, how))
    assert (tmp_path / "run" / LAST / "config.json").is_file()


def test_grippers_are_told_by_the_names_that_the_dataset_has(seen, bases, tmp_path, capsys):
    named = write_seen(tmp_path / "named")
    file = named / "meta/info.json"
    info = json.loads(file.read_text())
    info["features"]["action"]["names"] = ["shoulder", "left_gripper"]
    file.write_text(json.dumps(info))
    how = {"policy.use_relative_actions": "true", "policy.device": "cpu"}
    for begun in (small("pi0"), {"policy.path": bases["pi0"]}):
        folder = tmp_path / f"run{len(begun)}"
        train(*words(named, folder, SHORT, {"steps": 1}, begun, how))
        assert "computed from relative actions" in capsys.readouterr().err
        told = json.loads((folder / LAST / "config.json").read_text())
        assert told["action_feature_names"] == ["shoulder", "left_gripper"]
        parts = read_checkpoint(folder / LAST)
        (step,) = (s for s in parts.preprocessor.steps if isinstance(s, RelativeActions))
        assert step.offset(torch.zeros(1, 1, 2), torch.ones(1, 2)).tolist() == [[[1, 0]]]
        undone = next(s for s in parts.postprocessor.steps if isinstance(s, AbsoluteActions))
        assert undone.relative == step
    train(*words(seen, tmp_path / "mute", SHORT, {"steps": 1}, small("pi0"), how))
    assert "relative_exclude_joints" in capsys.readouterr().err
