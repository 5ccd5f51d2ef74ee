"""A plug-in with a mistake: one line with file and line, exit code 2, and no run folder."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import msgspec
import pytest

from proctor.cli import main

_NUMBERS = itertools.count()
BENCHMARK = """
from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim

class World(Fake):
    def protocol(self):
        return {"rule": 1}

    def make_sim(self, task):
        return super().make_sim(task)

PLUGIN = BenchmarkPlugin(FakeConfig, World, "theirs")
"""
POLICY = """
import numpy as np
from proctor.policies.base import Policy, PolicyConfig, PolicyPlugin, PolicySpec

class Mine(Policy):
    spec = PolicySpec("mine", n_action_steps=1)

    def __init__(self, config, interface):
        self.size = interface.action.size

    def act(self, batch):
        return np.zeros((len(batch.queries), 1, self.size))

    def protocol(self):
        return {}

PLUGIN = PolicyPlugin(PolicyConfig, Mine, "theirs")
"""


def said_of(
    capsys: pytest.CaptureFixture[str], folder: Path, text: str, flag: str, *others: str
) -> str:
    """Run with a plug-in of this text; return the one line that is said of it."""
    module = f"theirs_{next(_NUMBERS)}"
    (folder / f"{module}.py").write_text(text.lstrip("\n"))
    words = [
        "eval",
        f"{flag}={module}:PLUGIN",
        *others,
        "--eval.n_episodes=2",
        "--video.episodes=0",
    ]
    try:
        assert main([*words, f"--output_dir={folder / 'run'}"]) == 2
    finally:
        sys.modules.pop(module, None)
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("proctor: error: ")]
    assert errors == lines[-1:]
    assert not any("Traceback" in line for line in lines)
    return errors[0].replace(module, "theirs")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


BENCHMARK_MISTAKES = {
    "a syntax error": ("class World(Fake):", "class World(Fake)", "theirs.py:4: SyntaxError: "),
    "an import that fails": ("import Fake,", "import Fakes,", "theirs.py:2: ImportError: cannot"),
    "a package that is not there": (
        "class World",
        "import no_such_package\nclass World",
        "theirs.py:4: ModuleNotFoundError: No",
    ),
    "an error while it is imported": (
        "class World",
        "1 / 0\nclass World",
        "theirs.py:4: ZeroDivisionError: division by zero",
    ),
    "an exit while it is imported": (
        "class World",
        "import sys\nsys.exit(0)\nclass World",
        "theirs.py:5: SystemExit: 0",
    ),
    "an exit while it is made": (
        "    def protocol",
        "    def __init__(self, config): raise SystemExit(0)\n    def protocol",
        "theirs.py:5: SystemExit: 0",
    ),
    "an error while it is made": (
        "    def protocol",
        "    def __init__(self, config):\n        config.nothing\n    def protocol",
        "theirs.py:6: AttributeError: 'FakeConfig' object has no attribute 'nothing'",
    ),
    "a constructor that takes nothing": (
        "    def protocol",
        "    def __init__(self): pass\n    def protocol",
        "theirs.py:4: TypeError: World.__init__() takes 1 positional argument but 2 were given",
    ),
    "a missing method": (
        "    def protocol",
        "    tasks = None\n    def protocol",
        "theirs.py:4: World has no method tasks()",
    ),
    "a method with other parameters": (
        "def make_sim(self, task)",
        "def make_sim(self)",
        "theirs.py:8: World.make_sim() must take (task)",
    ),
    "a missing attribute": (
        "    def protocol",
        "    @property\n    def preload(self): raise AttributeError\n    def protocol",
        "theirs.py:4: World has no attribute 'preload'",
    ),
    "a protocol that is no JSON": (
        '"rule": 1',
        '"rule": object',
        "theirs.py:5: World.protocol() is not JSON: Object of type type",
    ),
    "tasks that are none": (
        "    def protocol",
        "    def tasks(self): return ['reach']\n    def protocol",
        "theirs.py:5: World.tasks() returned a str among its Tasks",
    ),
    "an error in the middle": (
        "    def protocol",
        "    def spec(self, task, index, seed):\n        return {}[index]\n    def protocol",
        "theirs.py:6: KeyError: 0",
    ),
    "a config without its decorator": (
        "class World",
        "class Config(FakeConfig):\n    size: int = 3\nFakeConfig = Config\nclass World",
        "theirs.py:4: Config has fields but no @dataclass above it",
    ),
}
SIM_MISTAKES = {
    "a simulator without a method": (
        "return super().make_sim(task)",
        "return Bare()\n\nclass Bare:\n    def reset(self, spec): pass",
        "theirs.py:11: Bare has no method step(action)",
    ),
    "a step that gives no Step": (
        "return super().make_sim(task)",
        "return Tuples(self._config, task)\n\nclass Tuples(FakeSim):\n"
        "    def step(self, action):\n        return 0.0, False",
        "theirs.py:12: Tuples.step returned a tuple, not a StepResult",
    ),
    "a success that is text": (
        "return super().make_sim(task)",
        "return Text(self._config, task)\n\nclass Text(FakeSim):\n"
        "    def step(self, action):\n"
        "        return __import__('proctor').types.StepResult(0.0, 'False', False)",
        "theirs.py:12: Text.step success is 'False' (str)",
    ),
}
POLICY_MISTAKES = {
    "a missing method": (
        "def act",
        "def acts",
        "theirs.py:4: TypeError: Can't instantiate abstract class Mine",
    ),
    "a method with other parameters": (
        "def act(self, batch)",
        "def act(self)",
        "theirs.py:10: Mine.act() must take (batch)",
    ),
    "an exit while it is made": (
        "self.size = interface.action.size",
        "raise SystemExit(0)",
        "theirs.py:8: SystemExit: 0",
    ),
    "no actions to play": (
        "n_action_steps=1",
        "n_action_steps=0",
        "theirs.py:4: Mine.spec: n_action_steps must be at least 1, or None, not 0",
    ),
    "inputs that are one text": (
        'PolicySpec("mine"',
        'PolicySpec("mine", "observation.state"',
        "theirs.py:4: Mine.spec: inputs must be a tuple of keys: ('observation.state',)",
    ),
    "a protocol that is no JSON": (
        "return {}",
        "return {'weights': np.zeros(3)}",
        "theirs.py:13: Mine.protocol() is not JSON: Object of type ndarray",
    ),
    "a protocol that is not a number": (
        "return {}",
        "return {'x': float('nan')}",
        "theirs.py:13: Mine.protocol() is not JSON: Out of range float values",
    ),
}


@pytest.mark.parametrize("mistake", BENCHMARK_MISTAKES)
def test_a_mistake_in_a_benchmark(
    mistake: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was, becomes, sentence = BENCHMARK_MISTAKES[mistake]
    assert was in BENCHMARK
    text = BENCHMARK.replace(was, becomes, 1)
    said = said_of(capsys, here, text, "--env.type", "--policy.type=zero")
    assert sentence in said
    assert not (here / "run").exists()


@pytest.mark.parametrize("in_workers", [True, False], ids=["worker", "here"])
@pytest.mark.parametrize("mistake", SIM_MISTAKES)
def test_a_mistake_in_a_simulator(
    mistake: str, in_workers: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was, becomes, sentence = SIM_MISTAKES[mistake]
    how = f"--eval.use_async_envs={in_workers}".lower()
    text = BENCHMARK.replace(was, becomes, 1)
    assert sentence in said_of(capsys, here, text, "--env.type", "--policy.type=zero", how)


@pytest.mark.parametrize("mistake", POLICY_MISTAKES)
def test_a_mistake_in_a_policy(
    mistake: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was, becomes, sentence = POLICY_MISTAKES[mistake]
    assert was in POLICY
    text = POLICY.replace(was, becomes, 1)
    said = said_of(capsys, here, text, "--policy.type", "--env.type=fake")
    assert sentence in said
    assert not (here / "run").exists()


def test_without_a_mistake_both_run_together(here: Path) -> None:
    (here / "good_world.py").write_text(BENCHMARK)
    (here / "good_policy.py").write_text(POLICY)
    words = ["--env.type=good_world:PLUGIN", "--policy.type=good_policy:PLUGIN"]
    assert main(["eval", *words, "--eval.n_episodes=2", f"--output_dir={here / 'run'}"]) == 0


def test_a_file_here_does_not_stand_in_for_an_installed_package(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "msgspec.py").write_text("raise SystemExit('the wrong one')")
    assert main(["eval", "--env.type=msgspec:PLUGIN", "--policy.type=zero"]) == 2
    assert "module msgspec has no 'PLUGIN'" in capsys.readouterr().err


def test_a_module_that_is_nowhere_is_said_with_where_was_looked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--env.type=no_such_module:PLUGIN", "--policy.type=zero"]) == 2
    said = capsys.readouterr().err
    assert f"No module named 'no_such_module' (looked in {here}" in said


def test_an_evaluation_without_readable_results_does_not_exit_with_0(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msgspec.json, "encode", lambda record: b"{}")
    words = ["eval", "--env.type=fake", "--policy.type=zero", "--eval.n_episodes=2"]
    assert main([*words, "--video.episodes=0", f"--output_dir={here / 'run'}"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("proctor: error: 2 episodes") for line in said) == 1
