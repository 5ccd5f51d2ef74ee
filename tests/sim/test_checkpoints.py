"""A checkpoint on Meta-World with pixels: same outcomes however it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proctor import evaluate, plugins
from proctor.benchmarks.base import interface_of

pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
pytestmark = pytest.mark.sim

ENV = {
    "type": "metaworld",
    "task": "reach-v3,push-v3,drawer-open-v3,window-close-v3",
    "observation_height": 48,
    "observation_width": 48,
    "shadow_map": 0,
    "episode_length": 8,
}


def write(folder: Path, kind: str, **fields: Any) -> Path:
    from proctor.policies.lerobot.checkpoint.saving import write_checkpoint

    benchmark = plugins.find_benchmark("metaworld")
    settings = {key: value for key, value in ENV.items() if key != "type"}
    plugin = plugins.find_policy(kind)
    interface = interface_of(benchmark.make(benchmark.config(**settings)))
    policy: Any = plugin.make(plugin.config(**fields), interface)
    write_checkpoint(policy.parts, folder / kind)
    return folder / kind


@pytest.mark.slow  # in make test a policy that looks, on Meta-World, and ACT on the fake benchmark
@pytest.mark.parametrize("n_episodes", [1, 4])
def test_four_tasks_episodes_are_the_same_in_every_way_of_running(
    tmp_path: Path, n_episodes: int
) -> None:
    path = write(
        tmp_path, "act", chunk_size=10, n_action_steps=4, dim_model=64, n_heads=4,
        dim_feedforward=64, n_encoder_layers=1, n_vae_encoder_layers=1,
    )  # fmt: skip

    def play(name: str, **settings: Any) -> dict[Any, Any]:
        run = evaluate(
            policy={"path": str(path)}, env=ENV, eval={"n_episodes": n_episodes, **settings},
            video={"episodes": 0},
            output_dir=tmp_path / name,
        )  # fmt: skip
        assert run.complete
        assert run.tally.errors == 0
        return {row.key: (row.digest, row.outcome, row.steps) for row in run.rows}

    one_by_one = play("one", batch_size=1, use_async_envs=False)
    assert len(one_by_one) == 4 * n_episodes
    assert len(set(one_by_one.values())) == 4 * n_episodes
    assert play("four", batch_size=4) == one_by_one
    assert play("lockstep", batch_size=4, scheduler="lockstep") == one_by_one
