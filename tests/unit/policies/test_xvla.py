"""X-VLA: same episodes whatever the load, what it refuses, and files of all who have written it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_policies import batch_of, episode, fresh_queries
from tests.conftest import digests
from tests.refusals import refuses
from tests.unit.policies.xvla_names import under_first_names

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.features import ACTION, IMAGES, STATE, Feature, FeatureKind
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import decode_config, encode_config
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.lerobot.tokenizer.language import Tokenize
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.policies.xvla.config import PLUGIN, XVlaConfig
from proctor.policies.xvla.network import XVla, resize_with_padding
from proctor.policies.xvla.steps import ImageScale

pytestmark = pytest.mark.vla
RUN = Path(__file__).parents[2] / "golden" / "data" / "xvla_run"
SIZES = json.loads((RUN / "auto" / "config.json").read_text())
SMALL: dict[str, Any] = {
    "chunk_size": 6, "n_action_steps": 3, "florence_config": SIZES["florence_config"],
    "tokenizer_max_length": 12, "hidden_size": 32, "depth": 1, "num_heads": 4, "num_domains": 2,
    "len_soft_prompts": 2, "dim_time": 8, "action_mode": "auto", "num_denoising_steps": 2,
    "max_state_dim": 20, "resize_imgs_with_padding": [32, 32], "tokenizer": str(RUN / "tokenizer"),
}  # fmt: skip
INPUTS = {
    STATE: Feature(FeatureKind.STATE, (4,), "float32"),
    "observation.image": Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8"),
}


def small(**changes: Any) -> XVlaConfig:
    action = {ACTION: Feature(FeatureKind.ACTION, (3,), "float32")}
    return XVlaConfig(**{"input_features": INPUTS, "output_features": action, **SMALL, **changes})


def test_a_state_that_is_cut_is_said_to_be() -> None:
    for size, said in ((4, False), (3, True)):
        network = XVla(small(max_state_dim=size))
        assert bool(network.notes) is said
        assert network.training_notes(1) == network.notes


@pytest.fixture(scope="module")
def parts() -> LoadedCheckpoint:
    torch.manual_seed(0)
    return LoadedCheckpoint(small(), XVla(small()), "model.", *default_pipelines(small(), {}, {}))


def test_batches_of_1_3_and_8_give_the_same_bits(parts: LoadedCheckpoint) -> None:
    policy = ChunkPolicy(parts, "cpu")
    specs = [episode(index) for index in range(8)]
    alone = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in specs]
    for size in (3, 8):
        together = [
            policy.act(batch_of(policy, fresh_queries(policy, specs[i : i + size])))
            for i in range(0, len(specs), size)
        ]
        np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))
    assert len({chunk.tobytes() for chunk in alone}) == len(alone)


def test_other_words_are_other_actions(parts: LoadedCheckpoint) -> None:
    policy = ChunkPolicy(parts, "cpu")
    spec = episode(0)
    other = replace(spec, task=replace(spec.task, instruction="leave it"))
    first, second = (
        policy.act(batch_of(policy, fresh_queries(policy, [one]))) for one in (spec, other)
    )
    assert np.abs(first - second).max() > 1e-6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that fits the fake benchmark, with random weights."""
    benchmark = plugins.find_benchmark("fake")
    interface = interface_of(benchmark.make(benchmark.config(image_size=32)))
    fields = {name: value for name, value in SMALL.items() if name != "tokenizer"}
    policy: Any = PLUGIN.make(
        XVlaConfig(**fields, tokenizer_name=str(RUN / "tokenizer")), interface
    )
    folder = tmp_path_factory.mktemp("xvla") / "checkpoint"
    write_checkpoint(policy.parts, folder)
    return str(folder)


@pytest.fixture
def play(run: Callable[..., Evaluation], checkpoint: str) -> Callable[..., Evaluation]:
    def play(**flags: Any) -> Evaluation:
        settings = {
            "policy__type": "pretrained",
            "policy__path": checkpoint,
            "env__image_size": 32,
            "env__episode_length": 7,
            "env__endless": True,
            "eval__n_episodes": 8,
            "eval__use_async_envs": False,
        }
        return run(**{**settings, **flags})

    return play


def test_load_scheduler_latency_and_resume_change_no_episode(
    play: Callable[..., Evaluation],
) -> None:
    alone = play(eval__batch_size=1)
    for size in (3, 8):
        assert digests(play(eval__batch_size=size)) == digests(alone)
    assert digests(play(eval__batch_size=3, eval__scheduler="lockstep")) == digests(alone)
    some = play(eval__episodes=[1, 2])
    rest = play(output_dir=str(some.path), resume=True)
    assert digests(rest) == digests(alone)
    late = play(eval__latency_steps=1, eval__batch_size=1)
    assert digests(play(eval__latency_steps=1, eval__batch_size=4)) == digests(late)
    assert digests(late) != digests(alone)


def test_weights_under_florences_first_names_are_the_same(parts: LoadedCheckpoint) -> None:
    state = parts.network.state_dict()
    found = parts.network.remap_state_dict(under_first_names(state))
    assert found.keys() == state.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_cameras_that_lerobot_calls_empty_are_views_of_nothing() -> None:
    raw = json.loads(encode_config(small(empty_cameras=1), "0.6"))
    seen = {"type": "VISUAL", "shape": [3, 480, 640]}
    raw["input_features"][f"{IMAGES}empty_camera_0"] = seen
    config = decode_config(raw, XVlaConfig, "config.json")
    assert config.cameras == ["observation.image"]
    assert config.n_views == 3, "LeRobot counts it twice: by its name, and by empty_cameras"
    again = decode_config(json.loads(encode_config(config, "0.6")), XVlaConfig, "config.json")
    assert again == config


def test_pictures_are_fitted_to_the_right_and_below() -> None:
    found = resize_with_padding(torch.ones(1, 3, 20, 40), 32, 32)
    assert found[..., :16, :].abs().max() == 0
    assert found[..., 16:, :].min() == 1


def test_a_kind_of_robot_that_there_is_not_is_refused_in_one_line(
    checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(checkpoint, folder)
    file = folder / "policy_preprocessor.json"
    pipeline = json.loads(file.read_text())
    (step,) = [s for s in pipeline["steps"] if s["registry_name"] == "xvla_add_domain_id"]
    step["config"]["domain_id"] = 1
    file.write_text(json.dumps(pipeline))
    ChunkPolicy(read_checkpoint(folder), "cpu")
    step["config"]["domain_id"] = 2
    file.write_text(json.dumps(pipeline))
    with refuses(UsageError, "policy.unknown-domain") as refused:
        ChunkPolicy(read_checkpoint(folder), "cpu")
    assert "0-1" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_padding_by_the_batch_is_refused_for_it_is_read(parts: LoadedCheckpoint) -> None:
    steps = [
        replace(step, padding="longest") if isinstance(step, Tokenize) else step
        for step in parts.preprocessor.steps
    ]
    with refuses(UsageError, "checkpoint.invalid-pipeline") as refused:
        parts.network.check_preprocessor(steps)
    assert "'longest'" in str(refused.value)


def test_too_many_tokens_and_pictures_scaled_twice_are_refused(parts: LoadedCheckpoint) -> None:
    steps = [
        replace(step, max_length=13) if isinstance(step, Tokenize) else step
        for step in parts.preprocessor.steps
    ]
    with refuses(UsageError, "policy.prompt-too-long") as refused:
        parts.network.check_preprocessor(steps)
    assert "13" in str(refused.value)
    with refuses(UsageError, "checkpoint.invalid-pipeline") as refused:
        parts.network.check_preprocessor([ImageScale(), *parts.preprocessor.steps])
    assert "xvla_image_scale" in str(refused.value)


def test_without_its_steps_it_is_no_guess_which_robot_it_is(
    checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(checkpoint, folder)
    for file in folder.glob("policy_*"):
        file.unlink()
    with refuses(UsageError, "checkpoint.missing-pipelines"):
        read_checkpoint(folder)


FROZEN = {
    "freeze_vision_encoder": "vlm.vision_tower.",
    "freeze_language_encoder": "vlm.language_model.",
}


@pytest.mark.parametrize("flag", FROZEN)
def test_what_is_frozen_does_not_learn(flag: str) -> None:
    network = XVla(small(**{flag: True}))
    still = {name for name, value in network.named_parameters() if not value.requires_grad}
    assert still == {
        name for name, _ in network.named_parameters() if name.startswith(FROZEN[flag])
    }
    only_prompts = XVla(small(train_policy_transformer=False))
    learning = {n for n, p in only_prompts.transformer.named_parameters() if p.requires_grad}
    assert learning == {"soft_prompt_hub.weight"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"n_action_steps": 7}, "policy.out-of-range"),
        ({"action_mode": "ee6d"}, "policy.action-size-mismatch"),
        ({"action_mode": "fly"}, "policy.unknown-choice"),
        ({"max_action_dim": 2}, "policy.action-size-mismatch"),
        ({"num_heads": 5}, "policy.not-divisible"),
        ({"max_len_seq": 9}, "policy.too-many-tokens"),
        ({"resize_imgs_with_padding": [8]}, "policy.invalid-shape"),
        ({"florence_config": {"vision_config": {"model_type": "vit"}}}, "policy.wrong-backbone"),
        ({"florence_config": {"text_config": {"d_model": 10**9}}}, "policy.out-of-range"),
        ({"florence_config": {"vision_config": {"depths": [1]}}}, "policy.invalid-shape"),
        ({"florence_config": {"vision_config": {"depths": "x"}}}, "policy.wrong-backbone"),
    ],
    ids=str,
)
def test_invalid_configs_are_refused_in_one_line(changes: Any, code: str) -> None:
    with refuses(UsageError, code) as refused:
        small(**changes).validate()
    assert next(iter(changes)) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_without_a_camera_is_refused() -> None:
    with refuses(UsageError, "policy.missing-input"):
        small(input_features={STATE: INPUTS[STATE]}).validate()
