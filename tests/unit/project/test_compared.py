"""The promises of docs/explanation/compared.md: their tests exist; the rest is tested here."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.types import EpisodeSpec, StepResult, Task

ROOT = Path(__file__).resolve().parents[3]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def table_rows() -> list[str]:
    lines = (ROOT / "docs/explanation/compared.md").read_text().splitlines()
    return [line for line in lines if re.match(r"\| \d+ \|", line)]


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs/explanation/compared.md").read_text())
    for file, test in named:
        functions = ast.walk(ast.parse((ROOT / file).read_text()))
        names = {node.name for node in functions if isinstance(node, ast.FunctionDef)}
        assert test in names, f"{file} has no {test}"


def test_every_claim_of_the_page_names_a_test() -> None:
    rows = table_rows()
    assert len(rows) >= 10
    assert [row for row in rows if not NAMED.search(row)] == []


class WatchedSim(FakeSim):
    """Fails when it is stepped past its episode's end, or if torch is imported."""

    def reset(self, spec: EpisodeSpec) -> None:
        assert "torch" not in sys.modules, "a simulator's process has imported torch"
        self._over = False
        self._left = spec.task.max_steps
        super().reset(spec)

    def step(self, action: Array) -> StepResult:
        assert not self._over, "stepped past the end"
        step = super().step(action)
        self._left -= 1
        self._over = step.terminated or self._left == 0
        return step


class Watched(Fake):
    """The fake benchmark with simulators that check how they are used."""

    def make_sim(self, task: Task) -> FakeSim:
        return WatchedSim(self._config, task)


WATCHED = BenchmarkPlugin(FakeConfig, Watched, "watched")


@pytest.mark.parametrize("scheduler", ["continuous", "lockstep"])
def test_no_simulator_is_stepped_after_its_episode(
    run: Callable[..., Evaluation], scheduler: str
) -> None:
    evaluation = run(
        policy__type="expert",
        env__type="tests.unit.project.test_compared:WATCHED",
        eval__n_episodes=6,
        eval__batch_size=3,
        eval__scheduler=scheduler,
    )
    assert [row.error for row in evaluation.rows] == [None] * 6
    assert len({row.steps for row in evaluation.rows}) > 1, "they must end at different times"


@pytest.mark.parametrize("scheduler", ["continuous", "lockstep"])
def test_a_return_is_the_sum_of_the_episodes_own_rewards(
    run: Callable[..., Evaluation], scheduler: str
) -> None:
    evaluation = run(
        policy__type="expert", eval__n_episodes=6, eval__batch_size=3, eval__scheduler=scheduler
    )
    for row in evaluation.rows:
        rewards = rewards_by_hand(row.episode_index)
        assert row.steps == len(rewards)
        assert row.sum_reward == pytest.approx(sum(rewards), abs=1e-6)
        assert row.max_reward == pytest.approx(max(rewards), abs=1e-6)


def rewards_by_hand(index: int) -> list[float]:
    benchmark = Fake(FakeConfig())
    (task,) = benchmark.tasks()
    sim, expert = benchmark.make_sim(task), benchmark.expert(task)
    sim.reset(benchmark.spec(task, index, 1000))
    rewards = []
    for _ in range(task.max_steps):
        step = sim.step(expert(sim.observe(benchmark.expert_inputs)))
        rewards.append(step.reward)
        if step.terminated:
            break
    return rewards


def test_workers_do_not_import_torch_for_a_network_policy(
    run: Callable[..., Evaluation],
) -> None:
    pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
    small: dict[str, Any] = {
        "chunk_size": 4, "n_action_steps": 4, "dim_model": 16, "n_heads": 2,
        "dim_feedforward": 16, "n_encoder_layers": 1, "n_vae_encoder_layers": 1,
    }  # fmt: skip
    evaluation = run(
        policy__type="act",
        env__type="tests.unit.project.test_compared:WATCHED",
        env__image_size=32,
        env__episode_length=8,
        **{f"policy__{name}": value for name, value in small.items()},
    )
    assert "torch" in sys.modules, "the network ran in this process"
    assert [row.error for row in evaluation.rows] == [None] * 4
