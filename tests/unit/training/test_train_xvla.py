"""Training of X-VLA from scratch or by adapters: exact resume, same actions after loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import digests
from tests.tiny_families import SIDE, checkpoint_of, flags_of, tiny_models
from tests.unit.policies.xvla_names import under_first_names

from .builders import RUN, files_of, words, write_seen
from .test_adapted_families import adapt, chunks
from .test_peft import LAST, Killed, as_trained, kill_at, train

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from safetensors.torch import load_file, save_file

from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint

pytestmark = pytest.mark.vla
SHORT = RUN | {"steps": 4, "save_freq": 2, "num_workers": 0}


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seen(tmp_path_factory.mktemp("data") / "seen", key="observation.image", side=SIDE)


def killed_and_whole(seen: Path, folder: Path, how: dict[str, Any], monkeypatch: Any) -> Path:
    """Train once uninterrupted and once resumed; check that both are equal and return one."""
    train(*words(seen, folder / "whole", SHORT, how))
    with monkeypatch.context() as patch:
        kill_at(patch, 3)
        with pytest.raises(Killed):
            train(*words(seen, folder / "killed", SHORT, how))
    train("--resume", f"--output_dir={folder / 'killed'}")
    whole, killed = (folder / name / "checkpoints/000004" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    return whole / "pretrained_model"


def test_from_nothing_to_a_policy_that_plays_killed_or_not(
    seen: Path, tmp_path: Path, monkeypatch: Any, run: Callable[..., Any]
) -> None:
    how = flags_of("xvla", tmp_path) | {"policy.optimizer_lr": 1e-2}
    how["policy.scheduler_warmup_steps"] = 1
    trained = killed_and_whole(seen, tmp_path, how, monkeypatch)
    before = load_file(trained.parents[1] / "000002/pretrained_model/model.safetensors")
    after = load_file(trained / "model.safetensors")
    for part in ("vlm.vision_tower.", "vlm.language_model.", "transformer."):
        names = [name for name in after if name.startswith(f"model.{part}")]
        assert any(not np.array_equal(before[name], after[name]) for name in names), part
    assert (trained / "tokenizer" / "tokenizer.json").is_file(), "it runs where there is no Hub"
    play = {
        "policy__type": "pretrained", "policy__path": str(trained), "env__image_size": SIDE,
        "env__episode_length": 5, "env__endless": True, "eval__n_episodes": 3,
        "eval__use_async_envs": False,
    }  # fmt: skip
    alone, distributed = (run(eval__batch_size=size, **play) for size in (1, 3))
    assert digests(distributed) == digests(alone)
    other = run(policy__instruction="something else", **play)
    assert digests(other) != digests(alone)


def test_a_killed_adaptation_ends_with_the_same_bits(
    seen: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    how = {"policy.path": checkpoint_of("xvla", tmp_path), "policy.device": "cpu", "peft.r": 2}
    how |= {"optimizer.lr": 1e-2, "peft.target_modules": "[qkv,proj]"}
    how |= {"peft.full_training_modules": "[soft_prompt_hub]"}
    trained = killed_and_whole(seen, tmp_path, how, monkeypatch)
    names = load_file(trained / "adapter_model.safetensors")
    assert "base_model.model.model.transformer.soft_prompt_hub.weight" in names
    assert "base_model.model.model.transformer.blocks.0.attn.qkv.lora_A.weight" in names


def test_an_adapter_of_a_base_with_florences_first_names_is_played_as_it_was_learnt(
    seen: Path, tmp_path: Path
) -> None:
    base = checkpoint_of("xvla", tmp_path)
    folder = adapt(seen, base, tmp_path / "run", "[qkv,q_proj]")
    expected = chunks(read_checkpoint(folder))
    file = base / "model.safetensors"
    state = {name.removeprefix("model."): value for name, value in load_file(file).items()}
    save_file({f"model.{k}": v for k, v in under_first_names(state).items()}, file)
    np.testing.assert_array_equal(chunks(read_checkpoint(folder)), expected)
    np.testing.assert_allclose(chunks(as_trained(folder)), expected, atol=1e-5)


def test_another_robots_cameras_and_numbers_take_the_place_of_the_bases(tmp_path: Path) -> None:
    other = write_seen(tmp_path / "other", key="observation.images.front", side=24, numbers=3)
    how = {"policy.path": checkpoint_of("xvla", tmp_path), "policy.device": "cpu"}
    how |= {"rename_map": '{"observation.images.front": "observation.image"}', "steps": 1}
    train(*words(other, tmp_path / "run", SHORT, how))
    config = read_checkpoint(tmp_path / "run" / LAST).config
    assert (config.action_dim, config.state_dim) == (3, 3)
    assert config.input_features["observation.image"].shape == (24, 24, 3)


def test_layers_whose_adapters_would_not_be_saved_are_refused(
    seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"policy.path": checkpoint_of("xvla", tmp_path), "policy.device": "cpu", "peft.r": 2}
    how |= {"peft.target_modules": "[qkv,action_encoder.fc]"}
    capsys.readouterr()
    train(*words(seen, tmp_path / "run", SHORT, how), expect=2)
    said = capsys.readouterr().err
    assert "transformer.action_encoder.fc " in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run" / LAST).exists()


def test_a_kind_of_robot_that_there_is_not_is_refused_before_anything_is_learnt(
    seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = checkpoint_of("xvla", tmp_path)
    file = base / "policy_preprocessor.json"
    file.write_text(file.read_text().replace('"domain_id": 0', '"domain_id": 7'))
    capsys.readouterr()
    how = {"policy.path": base, "policy.device": "cpu"}
    train(*words(seen, tmp_path / "run", SHORT, how), expect=2)
    assert "domain_id is 7 (choose 0-1)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
