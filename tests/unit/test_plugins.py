from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proctor import plugins
from proctor.benchmarks.fake import Fake
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare
from proctor.fingerprint import ConfigUse


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
    assert "theirs" in plugins.known_plugins("policies")
    assert "their_world" in plugins.known_plugins("benchmarks")
    prepared = prepare(build(EvalConfig, {"policy.type": "theirs", "env.type": "their_world"}))
    assert isinstance(prepared.benchmark, Fake)
    assert prepared.policy.spec.name == "zero"


def test_ours_are_listed_without_importing_what_stands_beside_them() -> None:
    assert plugins.known_plugins("benchmarks") == sorted(plugins.BUILT_IN["benchmarks"])
    flags_cannot_name = {plugins.PYTHON_OBJECT, *plugins.REWARD_MODELS}
    assert plugins.known_plugins("policies") == sorted(
        plugins.BUILT_IN["policies"].keys() - flags_cannot_name
    )
    assert plugins.known_plugins("policies", ConfigUse.TRAINING) == sorted(plugins.FAMILIES)


def in_a_fresh_process(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


WITH_FIFTEEN_FAMILIES = (
    "import sys\n"
    "from proctor.policies.lerobot.config.families import FAMILIES\n"
    "FAMILIES.update({f'family{i}': f'no.such.module{i}:PLUGIN' for i in range(12)})\n"
    "assert len(FAMILIES) >= 15\n"
)


def test_help_costs_a_tenth_of_a_second_at_most_whatever_stands_in_the_table() -> None:
    code = (
        "import sys, time\n"
        "from proctor.cli import main\n"
        "assert main(['--help']) == 0\n"
        "spent = time.process_time()\n"
        "assert 'proctor.policies.lerobot.config.families' not in sys.modules\n"
        "print(spent)\n"
    )
    nothing = "import time; print(time.process_time())"
    spent: dict[str, list[float]] = {code: [], nothing: []}
    for _ in range(5):  # the least of a few: what else runs here costs caches
        for program, seconds in spent.items():
            told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            assert told.returncode == 0, told.stderr
            seconds.append(float(told.stdout.split()[-1]))
    assert min(spent[code]) < max(0.1, 6 * min(spent[nothing]))  # on a slow machine: its tenth


def test_finding_one_family_imports_no_other_and_no_network() -> None:
    in_a_fresh_process(
        f"{WITH_FIFTEEN_FAMILIES}"
        "from proctor.policies.lerobot.config.families import family\n"
        "assert family('act').network == 'proctor.policies.act.network:Act'\n"
        "assert family('nonesuch') is None\n"
        "assert not {'torch', 'proctor.policies.diffusion.config', "
        "'proctor.policies.act.network'} & set(sys.modules)\n"
    )
