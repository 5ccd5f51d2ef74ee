"""A policy that was trained on its own evaluation starts is found in real simulators."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from proctor import plugins
from proctor.benchmarks.starts import start_source
from proctor.cli import main
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


def recorded(root: Path, env: str, seed: int, **flags: Any) -> TrainedStarts:
    """Record three short episodes without images, and return their starts."""
    own = {name.replace(".", "__"): value for name, value in BENCHMARKS[env].items()}
    own |= {"policy__type": "random", "record__n_episodes": 3, "record__extra": [], **flags}
    if env == "libero":
        own["record__starts"] = "published"  # those that evaluations use
    record(
        root,
        env__type=env,
        env__n_tasks=None,
        record__keep="all",
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


def test_the_checkpoint_of_merged_data_and_corrections_knows_their_starts(tmp_path: Path) -> None:
    """Of five evaluated starts, three are in merged data, and one more is corrected later."""
    pytest.importorskip("metaworld")
    pytest.importorskip("torch")
    from tests.unit.training.builders import RUN, SMALL_ACT, words

    same, others, both = (tmp_path / name for name in ("same", "others", "both"))
    extra = {"record__extra": ["environment_state"]}  # what a policy without images needs
    recorded(same, "metaworld", 1000, **extra)
    recorded(others, "metaworld", 500_000, **extra)
    assert main(["data", "merge", str(others), str(same), f"--output={both}"]) == 0
    run = tmp_path / "run"
    assert main(["train", *words(both, run, SMALL_ACT, RUN, {"steps": 2})]) == 0
    assert evaluated(run, tmp_path / "first") == (3, 5)
    corrections = tmp_path / "corrections"
    label = {"record__label": "expert", "record__n_episodes": 1}
    recorded(corrections, "metaworld", 1004, **label, **extra)
    more = [f"--dataset.root={corrections}", "--steps=4"]
    assert main(["train", "--resume", f"--output_dir={run}", *more]) == 0
    assert evaluated(run, tmp_path / "second") == (4, 5)


def evaluated(run: Path, output: Path) -> tuple[int, int]:
    """Return how many starts of an evaluation trained the checkpoint, and of how many."""
    settings: dict[str, Any] = {"env.type": "metaworld", **BENCHMARKS["metaworld"]}
    settings |= {"policy.path": str(run / "checkpoints/last/pretrained_model")}
    settings |= {"policy.device": "cpu", "eval.n_episodes": 5, "eval.use_async_envs": False}
    settings |= {"seed": 1000, "output_dir": str(output)}
    found = run_evaluation(prepare(build(EvalConfig, settings)), settings).contamination
    assert found is not None
    assert found.unknown is None
    return found.seen, found.starts
