"""Training of SmolVLA: expert, all weights or adapters; exact resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .builders import RUN, files_of, needs_peft, words, write_seen
from .test_peft import LAST, Killed, kill_at, train

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
needs_peft()
from safetensors.torch import load_file  # noqa: E402

pytestmark = pytest.mark.vla
VLM = Path(__file__).parents[2] / "golden" / "data" / "smolvla_run" / "vlm"
SMALL = {
    "policy.type": "smolvla",
    "policy.vlm_model_name": VLM,
    "policy.num_vlm_layers": 2,
    "policy.chunk_size": 4,
    "policy.n_action_steps": 4,
    "policy.max_state_dim": 4,
    "policy.max_action_dim": 4,
    "policy.resize_imgs_with_padding": "[16,16]",
    "policy.tokenizer_max_length": 8,
    "policy.optimizer_lr": 1e-2,
    "policy.device": "cpu",
}
SHORT = RUN | {"steps": 4, "save_freq": 2, "num_workers": 0}
EXPERT, VISION = "model.vlm_with_expert.lm_expert.", "model.vlm_with_expert.vlm.model.vision_model."
TEXT = "model.vlm_with_expert.vlm.model.text_model.layers.0."


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Path:
    return write_seen(tmp_path_factory.mktemp("data") / "seen")


@pytest.fixture(scope="module")
def base(seen, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    train(*words(seen, folder, SMALL, SHORT, {"steps": 2}))
    return folder / LAST


def weights(folder: Path, start: str) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    return {key: value for key, value in found.items() if key.startswith(start)}


def changed(one: Path, other: Path, start: str) -> bool:
    before, after = weights(one, start), weights(other, start)
    assert before
    return any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("everything", [False, True], ids=["the expert", "all"])
def test_a_killed_training_ends_with_the_same_bits_and_changes_what_it_should(
    seen, base, tmp_path, monkeypatch, everything
):
    how = {"policy.path": base, "policy.device": "cpu", "policy.optimizer_lr": 1e-2}
    if everything:
        how |= {"policy.train_expert_only": "false", "policy.freeze_vision_encoder": "false"}
    train(*words(seen, tmp_path / "whole", SHORT, how))
    with monkeypatch.context() as patch:
        kill_at(patch, 3)
        with pytest.raises(Killed):
            train(*words(seen, tmp_path / "killed", SHORT, how))
    train("--resume", f"--output_dir={tmp_path / 'killed'}")
    whole, killed = (tmp_path / name / "checkpoints/000004" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    trained = whole / "pretrained_model"
    assert changed(base, trained, EXPERT)
    assert changed(base, trained, VISION) is everything
    assert changed(base, trained, TEXT) is everything


def test_a_killed_adaptation_of_the_layers_that_lerobot_chooses_ends_with_the_same_bits(
    seen, base, tmp_path, monkeypatch
):
    how = {"policy.path": base, "policy.device": "cpu", "peft.r": 2, "optimizer.lr": 1e-2}
    train(*words(seen, tmp_path / "whole", SHORT, how))
    with monkeypatch.context() as patch:
        kill_at(patch, 3)
        with pytest.raises(Killed):
            train(*words(seen, tmp_path / "killed", SHORT, how))
    train("--resume", f"--output_dir={tmp_path / 'killed'}")
    whole, killed = (tmp_path / name / "checkpoints/000004" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    names = load_file(whole / "pretrained_model" / "adapter_model.safetensors")
    layers = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in names}
    assert layers == {
        *(f"{EXPERT}layers.{n}.self_attn.{which}_proj" for n in (0, 1) for which in "qv"),
        *(f"model.{name}_proj" for name in ("state", "action_in", "action_out")),
        *(f"model.action_time_mlp_{which}" for which in ("in", "out")),
    }


def test_another_robots_cameras_and_numbers_take_the_place_of_the_bases(base, tmp_path, capsys):
    other = write_seen(tmp_path / "other", key="observation.images.front", side=24, numbers=3)
    how = {"policy.path": base, "policy.device": "cpu", "batch_size": 2}
    how["rename_map"] = '{"observation.images.front": "observation.images.top"}'
    train(*words(other, tmp_path / "run", SHORT, {"steps": 2}, how))
    folder = tmp_path / "run" / LAST
    told = json.loads((folder / "config.json").read_text())
    assert told["output_features"]["action"]["shape"] == [3]
    shapes = {key: feature["shape"] for key, feature in told["input_features"].items()}
    assert shapes == {"observation.state": [3], "observation.images.top": [3, 24, 24]}
    steps = json.loads((folder / "policy_preprocessor.json").read_text())["steps"]
    described = steps[-1]["config"]["features"]
    assert described["action"]["shape"] == [3]
    assert described["observation.images.top"]["shape"] == [3, 24, 24]
    wide = write_seen(tmp_path / "wide", numbers=5)
    capsys.readouterr()
    path = {"policy.path": base, "policy.device": "cpu"}
    train(*words(wide, tmp_path / "no", SHORT, path), expect=2)
    assert "max_state_dim is 4, states have 5" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train_expert_only", "freeze_vision_encoder", "train_state_proj"])
def test_which_weights_learn_is_not_said_where_an_adapter_does(seen, base, tmp_path, capsys, name):
    how = {"policy.path": base, "policy.device": "cpu", "peft.r": 2, f"policy.{name}": "false"}
    train(*words(seen, tmp_path / "run", SHORT, how), expect=2)
    said = capsys.readouterr().err
    assert f"--policy.{name}" in said
    assert "--peft.full_training_modules" in said
    assert not (tmp_path / "run").exists()


def test_an_empty_camera_is_left_out_and_said_so(seen, base, tmp_path, capsys):
    how = {"policy.path": base, "policy.device": "cpu", "policy.empty_cameras": 1}
    train(*words(seen, tmp_path / "run", SHORT, {"steps": 2}, how))
    said = capsys.readouterr().err
    assert "--policy.empty_cameras" in said
    told = json.loads((tmp_path / "run" / LAST / "config.json").read_text())
    assert list(told["input_features"]) == ["observation.state", "observation.images.top"]
