"""The policy in docs/tutorials/own_policy.md is real."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from small_policies import OFFERED, episode

from proctor.features import IMAGE, STATE
from proctor.policies.base import Batch, PolicyPlugin, Query

DOCS = Path(__file__).resolve().parents[3] / "docs"


def python_blocks() -> list[str]:
    text = (DOCS / "tutorials/own_policy.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def circles(monkeypatch):
    source = python_blocks()[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 40
    module = types.ModuleType("circles_from_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "tutorials/own_policy.md", "exec"), module.__dict__)
    return module


def queries(policy, specs):
    return [Query(spec, 0, policy.new_episode(spec)) for spec in specs]


def test_the_example_acts(circles):
    plugin = circles.PLUGIN
    assert isinstance(plugin, PolicyPlugin)
    policy = plugin.make(plugin.config(radius=0.3), OFFERED)
    specs = [episode(index) for index in range(3)]
    states = np.random.default_rng(0).normal(size=(3, policy.spec.n_obs_steps, 4))
    together = policy.act(Batch(queries(policy, specs), {STATE: states}))
    assert together.shape == (3, policy.spec.n_action_steps, 3)
    alone = policy.act(Batch(queries(policy, specs[2:]), {STATE: states[2:]}))
    np.testing.assert_array_equal(alone[0], together[2])
    assert policy.protocol()["radius"] == 0.3


def test_the_example_reads_its_observations(circles):
    policy = circles.PLUGIN.make(circles.PLUGIN.config(), OFFERED)
    still, moving = np.zeros((1, 2, 4)), np.zeros((1, 2, 4))
    moving[:, -1] = 0.1
    acted = [policy.act(Batch(queries(policy, [episode(0)]), {STATE: s})) for s in (still, moving)]
    np.testing.assert_allclose(acted[0][..., :2] - acted[1][..., :2], 0.1, atol=1e-6)


def test_the_shown_lines_read_the_newest_image():
    (lines,) = (block for block in python_blocks() if block.startswith("images ="))
    seen = np.random.default_rng(0).integers(0, 256, (5, 2, 8, 6, 3), dtype=np.uint8)
    shown = {"batch": Batch([], {IMAGE: seen}), "np": np}
    exec(compile(lines, "tutorials/own_policy.md", "exec"), shown)
    assert shown["pixels"].shape == (5, 3, 8, 6)
    np.testing.assert_allclose(shown["pixels"][4, 2, 7, 5], seen[4, 1, 7, 5, 2] / 255, rtol=1e-6)
