from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proctor import plugins
from proctor.benchmarks.fake import Fake
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.run import prepare


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that offers a policy and a benchmark by entry points."""
    (tmp_path / "their_plugins.py").write_text(
        "from proctor.benchmarks.base import BenchmarkPlugin\n"
        "from proctor.benchmarks.fake import Fake, FakeConfig\n"
        "from proctor.policies.base import PolicyPlugin\n"
        "from proctor.policies.scripted.zero import ZeroConfig, ZeroPolicy\n"
        "POLICY = PolicyPlugin(ZeroConfig, ZeroPolicy, 'theirs')\n"
        "BENCHMARK = BenchmarkPlugin(FakeConfig, Fake, 'theirs')\n"
    )
    info = tmp_path / "their_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[proctor.policies]\ntheirs = their_plugins:POLICY\n"
        "[proctor.benchmarks]\ntheir_world = their_plugins:BENCHMARK\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_plugins", raising=False)


def test_plugins_of_others_are_found_by_their_entry_points(third_party: None) -> None:
    assert "theirs" in plugins.known("policies")
    assert "their_world" in plugins.known("benchmarks")
    prepared = prepare(build(EvalConfig, {"policy.type": "theirs", "env.type": "their_world"}))
    assert isinstance(prepared.benchmark, Fake)
    assert prepared.policy.spec.name == "zero"


def test_ours_are_listed_without_importing_what_stands_beside_them() -> None:
    assert plugins.known("benchmarks") == [
        "aloha", "fake", "gym", "hub", "libero", "metaworld", "pusht",
    ]  # fmt: skip
    assert plugins.known("policies") == [
        "act", "diffusion", "expert", "pretrained", "random", "zero",
    ]  # fmt: skip
