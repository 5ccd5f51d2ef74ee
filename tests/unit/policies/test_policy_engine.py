"""Real networks in the engine: any mix of tasks and workers shares one set of weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import digests
from tests.refusals import refuses

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.errors import SpecMismatch, UsageError
from proctor.evaluation.run import Evaluation
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint

SMALL_ACT = {
    "chunk_size": 8, "n_action_steps": 4, "dim_model": 32, "n_heads": 2, "dim_feedforward": 32,
    "n_encoder_layers": 1, "n_vae_encoder_layers": 1,
}  # fmt: skip
SMALL_DIFFUSION = {
    "horizon": 8, "n_action_steps": 3, "down_dims": [16, 32], "n_groups": 4,
    "diffusion_step_embed_dim": 16, "num_train_timesteps": 10, "num_inference_steps": 3,
    "spatial_softmax_num_keypoints": 4, "noise_scheduler_type": "DDIM",
}  # fmt: skip

SMALL_VQBET = {
    "n_obs_steps": 2, "action_chunk_size": 3, "crop_shape": None, "use_group_norm": True,
    "pretrained_backbone_weights": None, "gpt_input_dim": 16, "gpt_output_dim": 16,
    "gpt_hidden_dim": 16, "gpt_n_head": 2, "gpt_n_layer": 1, "gpt_block_size": 12,
    "bet_softmax_temperature": 2.0,
}  # fmt: skip
SMALL_TDMPC = {
    "horizon": 3, "latent_dim": 6, "mlp_dim": 16, "cem_iterations": 2, "n_gaussian_samples": 16,
    "n_pi_samples": 3, "n_elites": 4,
}  # fmt: skip
SMALL = {
    "act": SMALL_ACT, "diffusion": SMALL_DIFFUSION, "vqbet": SMALL_VQBET, "tdmpc": SMALL_TDMPC,
}  # fmt: skip


def checkpoint(folder: Path, kind: str, **fields: Any) -> str:
    """Write a checkpoint with random weights that fits the fake benchmark's camera and state."""
    benchmark = plugins.find_benchmark("fake")
    plugin = plugins.find_policy(kind)
    interface = interface_of(benchmark.make(benchmark.config(image_size=40)))
    policy: Any = plugin.make(plugin.config(**fields), interface)
    write_checkpoint(policy.parts, folder / kind)
    return str(folder / kind)


@pytest.fixture(scope="module", params=["act", "diffusion"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = SMALL[request.param]
    return checkpoint(tmp_path_factory.mktemp("checkpoints"), request.param, **fields)


def play(run: Callable[..., Evaluation], path: str, **flags: Any) -> Evaluation:
    world = {"env__image_size": 40, "env__episode_length": 12, "env__endless": True}
    return run(policy__type="pretrained", policy__path=path, **world | flags)


LONG = pytest.mark.slow
"""Of what the other policy shows as well, for `make test-all`."""


@pytest.mark.parametrize("path", ["act", pytest.param("diffusion", marks=LONG)], indirect=True)
def test_fifty_tasks_four_at_a_time_give_what_they_give_one_by_one(
    run: Callable[..., Evaluation], path: str
) -> None:
    fifty = {"env__n_tasks": 50, "eval__n_episodes": 1, "env__episode_length": 6}
    one_by_one = play(run, path, eval__batch_size=1, eval__use_async_envs=False, **fifty)
    four = play(run, path, eval__batch_size=4, env__max_parallel_tasks=4, **fifty)
    assert digests(four) == digests(one_by_one)
    assert len({row.digest for row in one_by_one.rows}) == 50


@pytest.mark.parametrize(
    ("path", "scheduler", "batch_size"),
    [
        ("act", "continuous", 7),
        ("act", "lockstep", 7),
        ("diffusion", "continuous", 7),
        *(
            pytest.param(*case, marks=LONG)
            for case in (
                ("act", "continuous", 2),
                ("act", "lockstep", 2),
                ("diffusion", "continuous", 2),
                ("diffusion", "lockstep", 2),
                ("diffusion", "lockstep", 7),
                *((name, "continuous", size) for name in ("vqbet", "tdmpc") for size in (3, 8)),
                *((name, "lockstep", size) for name in ("vqbet", "tdmpc") for size in (3, 8)),
            )
        ),
    ],
    indirect=["path"],
)
def test_the_batch_size_and_the_scheduler_change_nothing(
    run: Callable[..., Evaluation], path: str, batch_size: int, scheduler: str
) -> None:
    one_by_one = play(run, path, eval__batch_size=1, eval__use_async_envs=False, eval__n_episodes=8)
    evaluation = play(
        run, path, eval__batch_size=batch_size, eval__n_episodes=8, eval__scheduler=scheduler
    )
    assert digests(evaluation) == digests(one_by_one)


@pytest.mark.parametrize(
    "path",
    ["act", "diffusion", *(pytest.param(name, marks=LONG) for name in ("vqbet", "tdmpc"))],
    indirect=True,
)
def test_a_resumed_run_gives_the_episodes_of_an_undisturbed_one(
    run: Callable[..., Evaluation], path: str
) -> None:
    whole = play(run, path, eval__n_episodes=4)
    part = play(run, path, eval__n_episodes=2)
    rest = play(run, path, eval__n_episodes=4, output_dir=str(part.path), resume=True)
    assert digests(rest) == digests(whole)


def test_temporal_ensembling_is_per_episode(run: Callable[..., Evaluation], tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "act", **SMALL_ACT)
    flags = {"policy__n_action_steps": 1, "policy__temporal_ensemble_coeff": 0.01}
    short = {"eval__n_episodes": 4, "env__episode_length": 8}  # every step is a pass of the network
    in_turn = {"eval__batch_size": 1, "eval__use_async_envs": False, **short}
    alone = play(run, path, **in_turn, **flags)
    together = play(run, path, eval__batch_size=4, **short, **flags)
    assert digests(together) == digests(alone)
    plain = play(run, path, **in_turn, policy__n_action_steps=1)
    assert digests(plain) != digests(alone), "the flag must do something"


def test_the_weights_and_the_replan_interval_are_part_of_the_fingerprint(
    run: Callable[..., Evaluation], path: str
) -> None:
    folder = play(run, path).path
    with pytest.raises(UsageError) as refused:
        play(run, path, output_dir=str(folder), resume=True, policy__n_action_steps=2)
    assert "policy.n_action_steps" in str(refused.value)


def test_a_rename_map_reaches_the_policy(run: Callable[..., Evaluation], tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "act", **SMALL_ACT)
    config = Path(path) / "config.json"
    for file in [config, *Path(path).glob("policy_*.json")]:
        file.write_text(file.read_text().replace("observation.image", "observation.images.top"))
    with refuses(SpecMismatch, "policy.missing-input") as refused:
        play(run, path)
    assert """--rename_map='{"observation.image": """ in str(refused.value)
    renamed = play(run, path, rename_map={"observation.image": "observation.images.top"})
    assert renamed.complete


def test_strict_is_allowed_everywhere_and_changes_nothing_on_a_cpu(
    run: Callable[..., Evaluation], path: str
) -> None:
    loose = play(run, path, eval__n_episodes=2)
    strict = play(run, path, eval__n_episodes=2, eval__strict=True)
    assert digests(strict) == digests(loose)
    assert run(policy__type="zero", eval__strict=True).complete


def test_a_policy_that_knows_no_renaming_refuses_the_map(run: Callable[..., Evaluation]) -> None:
    with pytest.raises(UsageError) as refused:
        run(policy__type="zero", rename_map={"a": "b"})
    assert "--rename_map" in str(refused.value)
