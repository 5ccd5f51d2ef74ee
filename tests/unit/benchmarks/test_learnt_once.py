"""The parent probes an environment once; workers get the result as a record, not in the config."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare

HUB_ENV = """
import gymnasium
def make_env(n_envs=1, use_async_envs=False, cfg=None):
    return gymnasium.make("CartPole-v1")
"""


def hub(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "env.py").write_text(HUB_ENV)
    return {"type": "hub", "path": str(tmp_path), "trust_remote_code": True}


@pytest.mark.parametrize("kind", ["gym", "hub"])
def test_preparing_leaves_the_config_alone_and_workers_learn_nothing_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium")
    env = {"type": "gym", "id": "CartPole-v1"} if kind == "gym" else hub(tmp_path)
    settings = {
        "policy": {"type": "random"},
        "env": {**env, "success": "reward>=2", "episode_length": 5},
        "output_dir": str(tmp_path / "run"),
    }
    config = build(EvalConfig, settings)
    before = copy.deepcopy(config)
    prepared = prepare(config)
    assert config == before

    def again(*_: Any) -> None:
        raise AssertionError("a worker looked for what the parent had found")

    monkeypatch.setattr("proctor.benchmarks.gym.benchmark.probe_env", again)
    monkeypatch.setattr("proctor.benchmarks.gym.hub._locate", again)
    in_a_worker = pickle.loads(pickle.dumps(prepared.make_benchmark))()
    assert in_a_worker.tasks() == prepared.benchmark.tasks()
    assert in_a_worker.protocol() == prepared.benchmark.protocol()
