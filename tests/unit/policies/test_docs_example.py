"""The policy in docs/adding_a_policy.md is real."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from small_policies import OFFERED, episode

from proctor.policies.base import Batch, PolicyPlugin, Query

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
def circles(monkeypatch):
    text = (DOCS / "adding_a_policy.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len([line for line in source.splitlines() if line.strip()]) <= 40
    module = types.ModuleType("circles_from_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "adding_a_policy.md", "exec"), module.__dict__)
    return module


def test_the_example_acts(circles):
    plugin = circles.PLUGIN
    assert isinstance(plugin, PolicyPlugin)
    policy = plugin.make(plugin.config(radius=0.3), OFFERED)
    specs = [episode(index) for index in range(3)]
    seen = {"observation.state": np.zeros((3, 1, 4))}
    together = policy.act(Batch([Query(s, 0, policy.new_episode(s)) for s in specs], seen))
    assert together.shape == (3, policy.spec.n_action_steps, 3)
    alone = policy.act(Batch([Query(specs[2], 0, policy.new_episode(specs[2]))], seen))
    np.testing.assert_array_equal(alone[0], together[2])
    assert policy.protocol()["radius"] == 0.3
