"""SmolVLA in the engine: the same episodes whatever batch, scheduler or interruption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import digests

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.evaluation.run import Evaluation
from proctor.features import IMAGES
from proctor.policies.lerobot.checkpoint.checkpoint import checkpoint_interface
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint

pytestmark = pytest.mark.vla
VLM = Path(__file__).parents[2] / "golden" / "data" / "smolvla_run" / "vlm"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a checkpoint with random weights, made for pictures of another size."""
    pytest.importorskip("tokenizers", reason="pip install 'proctor[vla]'")
    benchmark, plugin = plugins.find_benchmark("fake"), plugins.find_policy("smolvla")
    interface = interface_of(benchmark.make(benchmark.config(image_size=48)))
    config: Any = plugin.config(
        chunk_size=4,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        num_vlm_layers=2,
        num_steps=2,
        resize_imgs_with_padding=[32, 32],
        tokenizer_max_length=16,
        vlm_model_name=str(VLM),
        device="cpu",
    )  # type: ignore[call-arg]
    policy: Any = plugin.make(config, interface)
    folder = tmp_path_factory.mktemp("checkpoints") / "smolvla"
    write_checkpoint(policy.parts, folder)
    return str(folder)


@pytest.fixture
def play(run: Callable[..., Evaluation], path: str) -> Callable[..., Evaluation]:
    def play(**flags: Any) -> Evaluation:
        settings = {
            "policy__type": "pretrained",
            "policy__path": path,
            "policy__device": "cpu",
            "env__image_size": 32,
            "env__episode_length": 10,
            "env__endless": True,
            "env__n_tasks": 2,
            "eval__n_episodes": 4,
            "eval__use_async_envs": False,
        }
        return run(**{**settings, **flags})

    return play


def test_batches_of_1_3_and_8_both_schedulers_and_a_resume_give_the_same_episodes(play) -> None:
    alone = digests(play(eval__batch_size=1))
    assert len({digest for digest, _, _ in alone.values()}) == 8
    for scheduler in ("continuous", "lockstep"):
        for size in (3, 8):
            together = play(eval__batch_size=size, eval__scheduler=scheduler)
            assert digests(together) == alone, (scheduler, size)
    part = play(eval__batch_size=3, eval__n_episodes=2)
    rest = play(eval__batch_size=8, output_dir=str(part.path), resume=True)
    assert digests(rest) == alone


def test_other_words_give_other_episodes(play) -> None:
    told, otherwise = play(), play(policy__instruction="something else")
    assert digests(told) != digests(otherwise)


def test_a_place_for_a_camera_is_not_asked_for_of_those_it_is_served_to(path, tmp_path) -> None:
    folder = tmp_path / "with_places"
    shutil.copytree(path, folder)
    config = json.loads((folder / "config.json").read_text())
    empty = {f"{IMAGES}empty_camera_0": {"type": "VISUAL", "shape": [3, 48, 64]}}
    config["input_features"] |= empty
    (folder / "config.json").write_text(json.dumps(config | {"empty_cameras": 1}))
    asked = checkpoint_interface(str(folder), None, {}).features
    assert list(asked) == list(checkpoint_interface(path, None, {}).features)
