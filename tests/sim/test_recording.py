"""Demonstrations of a real simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

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
