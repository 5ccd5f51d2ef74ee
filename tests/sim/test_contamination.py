"""A policy that was trained on its own evaluation starts is found in real simulators."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from proctor import plugins
from proctor.benchmarks.starts import start_source
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import run_evaluation
from proctor.report.run.contamination import make_contamination
from proctor.trained_starts import TrainedStarts
from tests.memoriser import starts_in
from tests.recordings import record

pytestmark = pytest.mark.sim
BENCHMARKS = {
    "metaworld": {"env.task": "reach-v3", "env.episode_length": 4},
    "pusht": {"env.episode_length": 4},
    "libero": {"env.task": "libero_spatial", "env.task_ids": [0], "env.episode_length": 4},
}
MODULES = {"metaworld": "metaworld", "pusht": "gym_pusht", "libero": "libero"}


def recorded(root: Path, env: str, seed: int) -> TrainedStarts:
    """Record three short episodes without images, and return their starts."""
    own = {name.replace(".", "__"): value for name, value in BENCHMARKS[env].items()}
    if env == "libero":
        own["record__starts"] = "published"  # those that evaluations use
    record(
        root,
        env__type=env,
        env__n_tasks=None,
        policy__type="random",
        record__n_episodes=3,
        record__keep="all",
        record__extra=[],
        seed=seed,
        eval__use_async_envs=False,
        **own,
    )
    return starts_in(root)


@pytest.mark.parametrize("env", BENCHMARKS)
def test_equal_starts_are_found_and_others_are_not(env: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(MODULES[env]) is None:
        pytest.skip(f"{env} is not installed")
    settings: dict[str, Any] = {"policy.type": "random", "env.type": env, **BENCHMARKS[env]}
    settings |= {"eval.n_episodes": 5, "eval.use_async_envs": False, "seed": 1000}
    settings["output_dir"] = str(tmp_path / "run")
    context = prepare(build(EvalConfig, settings))
    source = start_source(context.benchmark)
    rows = run_evaluation(context, settings).rows
    trained = recorded(tmp_path / "same", env, 1000).for_benchmark(source)
    found = make_contamination(TrainedStarts.decode(trained.encode()), rows)
    assert found is not None
    assert found.unknown is None
    assert (found.seen, found.starts) == (3, 5)
    if env == "libero":  # its init states are the same for every seed
        assert source == start_source(plugins.benchmark_maker(context.config.env)())
        return
    others = recorded(tmp_path / "others", env, 500_000).for_benchmark(source)
    found = make_contamination(others, rows)
    assert found is not None
    assert found.unknown is None
    assert found.seen == 0
    assert found.nearest is not None
    assert min(found.nearest.distances.values()) > 1e-3
