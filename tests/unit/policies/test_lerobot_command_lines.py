"""``lerobot-eval`` lines of LeRobot's documentation, with ``proctor eval`` in their place.

The checkpoints are small ones of ours, where the lines have those of LeRobot.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_policies as small
import torch

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.cli import main
from proctor.commands.evaluation.eval_settings import settings_from
from proctor.commands.shared.arguments import split_arguments
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation import preparing
from proctor.evaluation.preparing import prepare
from proctor.evaluation.rollout_context import RolloutContext
from proctor.features import ACTION, Array, Feature, FeatureKind
from proctor.policies.act import network
from proctor.policies.blocks.resnet import OUT_CHANNELS
from proctor.policies.compatibility import default_inputs
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.runs.journal import read_journal

LIBERO_4 = "--env.task=libero_spatial,libero_object,libero_goal,libero_10"
LINES = {
    "lerobot_eval.py, a policy of the Hub": (
        "--policy.path=lerobot/diffusion_pusht --env.type=pusht --eval.batch_size=10 "
        "--eval.n_episodes=10 --policy.use_amp=false --policy.device=cuda"
    ),
    "lerobot_eval.py, a checkpoint": (
        "--policy.path=outputs/train/diffusion_pusht/checkpoints/005000/pretrained_model "
        "--env.type=pusht --eval.batch_size=10 --eval.n_episodes=10 --policy.use_amp=false "
        "--policy.device=cuda"
    ),
    "libero.mdx, recommended": (
        f'--policy.path="your-policy-id" --env.type=libero {LIBERO_4} --eval.batch_size=1 '
        "--eval.n_episodes=10 --env.max_parallel_tasks=1"
    ),
    "libero.mdx, one suite": (
        '--policy.path="your-policy-id" --env.type=libero --env.task=libero_object '
        "--eval.batch_size=2 --eval.n_episodes=3"
    ),
    "libero.mdx, several suites": (
        '--policy.path="your-policy-id" --env.type=libero --env.task=libero_object,libero_spatial '
        "--eval.batch_size=1 --eval.n_episodes=2"
    ),
    "libero.mdx, some tasks, control mode and resets": (
        '--policy.path="your-policy-id" --env.type=libero --env.task=libero_object '
        "--env.task_ids=[1,2,3] --env.control_mode=absolute --env.init_states=true "
        "--env.hard_reset=false --eval.n_episodes=3"
    ),
    "libero.mdx, published results": (
        f"--output_dir=./eval_logs/ --env.type=libero {LIBERO_4} --eval.batch_size=1 "
        "--eval.n_episodes=10 --policy.path=pi05_libero_finetuned --policy.n_action_steps=10 "
        "--env.max_parallel_tasks=1"
    ),
    "metaworld.mdx": (
        '--policy.path="your-policy-id" --env.type=metaworld --env.task=medium '
        "--eval.batch_size=1 --eval.n_episodes=2"
    ),
    "evaluation.mdx, quick start": (
        "--policy.path=pepijn223/smolvla_libero --env.type=libero --env.task=libero_spatial "
        "--eval.n_episodes=10 --policy.device=cuda"
    ),
    "evaluation.mdx, a local checkpoint": (
        "--policy.path=outputs/train/act_pusht/checkpoints/005000/pretrained_model "
        "--env.type=pusht --eval.n_episodes=10"
    ),
    "evaluation.mdx, several suites": (
        "--policy.path=pepijn223/smolvla_libero --env.type=libero "
        '--env.task="libero_spatial,libero_object" --eval.n_episodes=10'
    ),
    "evaluation.mdx, cameras and debugging": (
        "--policy.path=pepijn223/smolvla_libero --env.type=libero "
        """--env.camera_name_mapping='{"agentview_image": "camera1", """
        """"robot0_eye_in_hand_image": "camera2"}' """
        "--eval.batch_size=1 --eval.use_async_envs=false --policy.use_amp=true"
    ),
    "rename_map.mdx": (
        "--policy.path=lerobot/pi0fast-libero --env.type=libero "
        """--rename_map='{"observation.images.image": "observation.images.base_0_rgb", """
        """"observation.images.image2": "observation.images.left_wrist_0_rgb"}'"""
    ),
    "Makefile, ALOHA": (
        "--policy.path=outputs/act/checkpoints/000004/pretrained_model --policy.device=cpu "
        "--env.type=aloha --env.episode_length=5 --eval.n_episodes=1 --eval.batch_size=1"
    ),
    "Makefile, PushT": (
        "--policy.path=outputs/diffusion/checkpoints/000002/pretrained_model "
        "--policy.device=cpu --env.type=pusht --env.episode_length=5 --eval.n_episodes=1 "
        "--eval.batch_size=1"
    ),
}


def words_with(checkpoint: Path, line: str) -> list[str]:
    """A line's words, with a checkpoint of ours where it has one of LeRobot's."""
    path = "--policy.path="
    return [f"{path}{checkpoint}" if w.startswith(path) else w for w in shlex.split(line)]


def fitting_checkpoint(words: list[str], folder: Path) -> Path:
    """A small ACT for the line's benchmark, which sees what the line renames by its new name."""
    config = build(EvalConfig, settings_from(split_arguments(EvalConfig, words)[1]))
    interface = interface_of(plugins.find_benchmark(config.env.type).make(config.env))
    renamed: Any = getattr(config.policy, "overrides", {}).get("rename_map") or "{}"
    names = json.loads(renamed)
    action = Feature(FeatureKind.ACTION, (interface.action.size,), "float32")
    act = small.small_act(
        input_features={names.get(k, k): f for k, f in default_inputs(interface).items()},
        output_features={ACTION: action},
        chunk_size=10,
    )
    return small.write_small(act, folder)


@pytest.fixture(autouse=True)
def small_eyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResNet of a line's checkpoint would take longer than all the rest."""

    def eyes(*args: Any, **kwargs: Any) -> torch.nn.Module:
        return torch.nn.Conv2d(3, OUT_CHANNELS, kernel_size=1, stride=32)

    monkeypatch.setattr(network, "ResNet", eyes)
    monkeypatch.setattr(small, "kept", small.Kept())


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks are all there is: no simulator is imported, no backend tried, nothing downloaded."""
    monkeypatch.setattr(preparing, "start_background_setup", lambda *args, **kwargs: None)
    for name in ("libero", "metaworld", "pusht", "aloha"):
        made = plugins.find_benchmark(name).make
        monkeypatch.setattr(made, "preflight", lambda self, keys: {})


def prepared(words: list[str]) -> RolloutContext[EvalConfig]:
    return prepare(build(EvalConfig, settings_from(split_arguments(EvalConfig, words)[1])))


@pytest.mark.parametrize("page", LINES)
def test_a_line_of_lerobots_documentation_runs_as_it_stands(
    page: str, nothing_starts: None, tmp_path: Path
) -> None:
    if "libero" in LINES[page]:
        pytest.importorskip("libero")
    checkpoint = fitting_checkpoint(words_with(tmp_path, LINES[page]), tmp_path / "checkpoint")
    run = prepared(words_with(checkpoint, LINES[page]))
    assert run.config.env.type in LINES[page]
    assert len(run.plan) == run.config.eval.n_episodes * len(run.benchmark.tasks())
    expected = ("changes nothing", "torch finds no", "in other units")  # its statistics are made up
    said = [*run.config.notes, *run.policy.spec.notes]
    assert all(any(words in note for words in expected) for note in said), said


def test_and_is_played_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gym_pusht")
    monkeypatch.chdir(tmp_path)
    line = LINES["Makefile, PushT"]
    checkpoint = fitting_checkpoint(words_with(tmp_path, line), tmp_path / "checkpoint")
    others = ["--job_name=from_lerobot", "--policy.use_amp=true", "--policy.push_to_hub=false"]
    assert main(["eval", *words_with(checkpoint, line), *others, "--video.episodes=0"]) == 0
    (run,) = Path("outputs/eval").glob("*/*_from_lerobot")
    assert [row.steps for row in read_journal(run).rows] == [5]


def test_the_mixed_precision_that_a_checkpoint_asks_for_is_used(tmp_path: Path) -> None:
    policies = {}
    for amp in (False, True):
        folder = small.write_small(small.small_act(use_amp=amp), tmp_path / str(amp))
        policies[amp] = load_policy(str(folder), None, {}, small.OFFERED)
    asked = load_policy(str(tmp_path / "False"), None, {"use_amp": "true"}, small.OFFERED)
    plain, mixed, by_flag = (acted(policy) for policy in (policies[False], policies[True], asked))
    assert np.array_equal(mixed, by_flag)
    assert not np.array_equal(mixed, plain)
    assert np.allclose(mixed, plain, atol=0.05)
    with torch.autocast("cpu"):
        assert np.array_equal(acted(policies[False]), mixed), "as LeRobot does it"
    assert policies[True].protocol()["numerics"]["autocast"] == "torch.bfloat16"
    assert "autocast" not in policies[False].protocol()["numerics"], "old runs go on"


def acted(policy: ChunkPolicy) -> Array:
    return policy.act(small.batch_of(policy, small.fresh_queries(policy, [small.episode(0)])))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_an_accelerator_that_is_not_here_is_replaced_and_named(tmp_path: Path) -> None:
    folder = small.write_small(small.small_act(), tmp_path / "checkpoint")
    policy = load_policy(str(folder), None, {"device": "cuda"}, small.OFFERED)
    assert policy.device.type in ("cpu", "mps")
    note = policy.spec.notes[-1]
    assert "cuda" in note
    assert note.endswith(f"runs on {policy.device.type}")


def test_how_it_was_trained_is_taken_by_a_checkpoint_with_a_note(tmp_path: Path) -> None:
    folder = small.write_small(small.small_act(), tmp_path / "checkpoint")
    flags = {"optimizer_lr": "1e-4", "kl_weight": "1", "n_action_steps": "2"}
    policy = load_policy(str(folder), None, flags, small.OFFERED)
    assert policy.spec.n_action_steps == 2
    assert policy.spec.notes == (
        "--policy.optimizer_lr, --policy.kl_weight change nothing here: it affects training only",
    )
