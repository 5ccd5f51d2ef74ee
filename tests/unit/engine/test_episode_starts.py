"""Every row of the journal has its start, however the episode was run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.types import EpisodeKey, Start, Task


class Stateless(Fake):
    """Its simulators show no state."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def start_state(self) -> dict[str, float]:
                return {}

            def physics(self) -> Array:
                return np.empty(0)

        return Sim(self._config, task)


STATELESS = BenchmarkPlugin(FakeConfig, Stateless, "shows no state")


def starts(evaluation: Evaluation) -> dict[EpisodeKey, Start | None]:
    return {row.key: row.start for row in evaluation.rows}


@pytest.mark.parametrize(
    "how",
    [
        {"eval__use_async_envs": False},
        {"video__episodes": 1},
        {"policy__type": "random", "policy__inputs": ["observation.state"]},
        {"policy__type": "random", "eval__use_async_envs": False},
        {"env__faults": {"0/1/0": "raise", "0/2/3": "memory"}, "eval__max_retries": 1},
    ],
    ids=["in-process", "video", "engine", "no-inputs", "errors"],
)
def test_the_start_of_an_episode_is_the_same_however_it_is_run(
    run: Callable[..., Evaluation], how: dict[str, Any]
) -> None:
    usual = starts(run(policy__type="expert"))
    assert all(start is not None and start.names for start in usual.values())
    assert len({start.digest for start in usual.values() if start}) == len(usual)
    found = starts(run(**{"policy__type": "expert", **how}))
    failed_in_reset = {key for key, start in found.items() if start is None}
    assert failed_in_reset == ({("point", 0, 1)} if "env__faults" in how else set())
    assert {**usual, **{key: start for key, start in found.items() if start}} == usual


def test_a_simulator_without_state_has_the_hash_of_its_first_observation(
    run: Callable[..., Evaluation],
) -> None:
    blind = {"policy__type": "random", "env__type": f"{__name__}:STATELESS"}
    seeing = blind | {"policy__inputs": ["observation.environment_state"]}
    found, again = starts(run(**blind)), starts(run(**seeing))
    assert found == again  # whatever the policy observes
    assert all(start is not None and start.names == () for start in found.values())
    assert len({start.digest for start in found.values() if start}) == len(found)
