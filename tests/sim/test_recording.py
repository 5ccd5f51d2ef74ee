"""Demonstrations of a real simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.features import ENVIRONMENT_STATE
from tests.recordings import columns, record, same

pytestmark = pytest.mark.sim


def test_meta_worlds_numbers_are_the_same_whatever_the_number_of_workers(tmp_path: Path) -> None:
    flags = {
        "env__type": "metaworld",
        "env__task": "reach-v3,drawer-close-v3",
        "env__episode_length": 150,
        "record__noise": 0.3,
        "record__noise_dims": [0, 1, 2],
    }
    ways = ({"eval__use_async_envs": False}, {"eval__batch_size": 1}, {"eval__batch_size": 2})
    told = []
    for number, way in enumerate(ways):
        recorded = record(tmp_path / str(number), env__n_tasks=None, **flags, **way)
        assert recorded.complete
        told.append(columns(tmp_path / str(number)))
    assert told[0]["observation.environment_state"].shape[1:] == (39,)
    assert same(told[0], told[1])
    assert same(told[0], told[2])


def test_meta_worlds_expert_labels_what_another_policy_does(tmp_path: Path) -> None:
    flags = {
        "env__type": "metaworld",
        "env__task": "reach-v3",
        "env__n_tasks": None,
        "env__episode_length": 40,
        "record__keep": "all",
        "record__n_episodes": 1,
        "eval__use_async_envs": False,
    }
    dagger = {"policy__type": "random", "record__label": "expert"}
    record(tmp_path / "alone", **flags)
    record(tmp_path / "watched", **flags, **dagger, record__expert_share=1)
    assert same(columns(tmp_path / "alone"), columns(tmp_path / "watched"))
    record(tmp_path / "dagger", **flags, **dagger)
    told = columns(tmp_path / "dagger")
    script = Metaworld(MetaworldConfig(task="reach-v3"))
    (task,) = script.tasks()
    asked = script.expert(task)
    for world, action in zip(told[ENVIRONMENT_STATE], told["action"], strict=True):
        # The dataset has 32 bits of the 64 that the expert was shown.
        assert np.allclose(np.clip(asked({ENVIRONMENT_STATE: world}), -1, 1), action, atol=1e-4)
    assert not told["next.success"].any()
