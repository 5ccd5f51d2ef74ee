"""The command line, recordings and the Python API all show a run's warnings and notes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.benchmarks.base import BenchmarkPlugin, with_defaults
from proctor.benchmarks.checks import check_benchmark
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.cli import main
from proctor.config.builder import build
from proctor.config.flags.unused_flags import unused_in_run
from proctor.config.recording import RecordConfig
from proctor.errors import PluginError, ProctorNote, ProctorWarning
from proctor.policies.base import PolicyConfig, PolicyPlugin
from proctor.policies.scripted.expert import ExpertPolicy
from proctor.testing import check_sim
from proctor.types import StepResult, Task

HERE = "tests.unit.evaluation.test_notices"


class Speaking(Fake):
    """A benchmark with a warning and a note."""

    warnings = ("its episodes cannot be repeated",)
    notes = ("it was made for a test",)


class SpeakingPolicy(ExpertPolicy):
    """The expert, with a note."""

    def __init__(self, config: Any, interface: Any) -> None:
        super().__init__(config, interface)
        object.__setattr__(self.spec, "notes", ("it is at commit 1234",))


BENCHMARK = BenchmarkPlugin(FakeConfig, Speaking, "speaks")
POLICY = PolicyPlugin(PolicyConfig, SpeakingPolicy, "speaks")
FLAGS = {
    "policy.type": f"{HERE}:POLICY",
    "env.type": f"{HERE}:BENCHMARK",
    "eval.use_async_envs": "false",
    "eval.watchdog_s": "9",  # which changes nothing without processes
    "policy.push_to_hub": "false",  # a flag of LeRobot that changes nothing here
}
SAID = [
    "warning: its episodes cannot be repeated",
    "note: it was made for a test",
    "note: it is at commit 1234",
    "note: --eval.watchdog_s changes nothing here",
    "note: --policy.push_to_hub changes nothing here",
]


def words(**more: Any) -> list[str]:
    return [f"--{name.replace('__', '.')}={value}" for name, value in (FLAGS | more).items()]


@pytest.mark.parametrize("command", ["eval", "record"])
def test_a_command_shows_all_notices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    own = {
        "eval": {"eval__n_episodes": 1, "video__episodes": 0, "output_dir": tmp_path / "run"},
        "record": {
            "record__n_episodes": 1,
            "record__images": "false",
            "dataset__root": tmp_path / "d",
        },
    }[command]
    assert main([command, *words(**own)]) == 0
    shown = capsys.readouterr().err
    assert [line for line in SAID if line not in shown] == []
    assert all(shown.count(line) == 1 for line in SAID)


@pytest.fixture
def nested() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in FLAGS.items():
        section, _, field = name.partition(".")
        made.setdefault(section, {})[field] = {"false": False}.get(value, value)
    return made


def test_evaluate_warns_of_the_same_before_it_plays(tmp_path: Path, nested: dict[str, Any]) -> None:
    with pytest.warns(ProctorWarning) as caught:
        proctor.evaluate(
            nested.pop("policy"),
            nested.pop("env"),
            n_episodes=1,
            video={"episodes": 0},
            output_dir=tmp_path / "run",
            **nested,
        )
    kinds = {ProctorWarning: "warning", ProctorNote: "note"}
    said = [f"{kinds[w.category]}: {w.message}" for w in caught if w.category in kinds]
    assert [line for line in SAID if not any(one.startswith(line) for one in said)] == []
    assert {w.filename for w in caught} == {__file__}, "it names the caller's line"


def test_a_warning_that_is_an_error_ends_it_before_anything_is_played(
    tmp_path: Path, nested: dict[str, Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProctorWarning)
        with pytest.raises(ProctorWarning):
            proctor.evaluate(**nested, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_environments_warn_of_their_benchmark() -> None:
    with pytest.warns(ProctorWarning, match="cannot be repeated"):
        proctor.make_env({"type": f"{HERE}:BENCHMARK"})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"record.images": False, "dataset.codec": "h264"}, "--dataset.codec changes nothing"),
        ({"dataset.video": False, "dataset.codec": "h264"}, "--dataset.codec changes nothing"),
        ({"eval.use_async_envs": False, "eval.watchdog_s": 9}, "--eval.watchdog_s changes nothing"),
    ],
    ids=str,
)
def test_a_recording_says_what_it_does_not_ask_for(flags: dict[str, Any], said: str) -> None:
    plain = {"policy.type": "expert", "env.type": "fake", "dataset.root": "d"}
    assert unused_in_run(build(RecordConfig, plain)) == []
    (line,) = unused_in_run(build(RecordConfig, plain | flags))
    assert line.startswith(said)


class Terse:
    """A third-party benchmark without the attributes that have defaults."""

    name, action = Fake.name, Fake.action
    distributions, preload, expert_inputs = (), (), ()

    def __init__(self, config: FakeConfig) -> None:
        fake = Fake(config)
        self.tasks, self.spec, self.features = fake.tasks, fake.spec, fake.features
        self.protocol, self.preflight = fake.protocol, fake.preflight
        self.make_sim, self.expert = fake.make_sim, fake.expert


def test_a_benchmark_need_not_say_what_has_a_default() -> None:
    benchmark = BenchmarkPlugin(FakeConfig, Terse, "terse").maker(FakeConfig())()  # type: ignore[arg-type]
    assert (benchmark.warnings, benchmark.notes, benchmark.judged) == ((), (), True)
    assert benchmark.lacking() is None
    check_benchmark(benchmark)
    check_sim(Terse(FakeConfig()), config=FakeConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("notes", "a text"), ("warnings", [1]), ("judged", 1)])
def test_attributes_of_another_type_are_refused(name: str, value: Any) -> None:
    benchmark = with_defaults(Fake(FakeConfig()))
    setattr(benchmark, name, value)
    with pytest.raises(PluginError) as refused:
        check_benchmark(benchmark)
    assert name in str(refused.value)
    with pytest.raises(AssertionError, match=name):
        check_sim(benchmark)


class Unjudged(Fake):
    """Declares that success is unknown, and reports success."""

    judged = False


class Silent(Fake):
    """Declares that success is known, and reports none."""

    def make_sim(self, task: Task) -> Any:
        sim = super().make_sim(task)
        step = sim.step
        sim.step = lambda action: StepResult(step(action).reward, None, False)  # type: ignore[method-assign]
        return sim


@pytest.mark.parametrize("kind", [Unjudged, Silent])
def test_the_contract_holds_success_against_judged(kind: type[Fake]) -> None:
    with pytest.raises(AssertionError, match="judged"):
        check_sim(kind(FakeConfig()))


@pytest.fixture(autouse=True)
def _no_warning_is_lost() -> Iterator[None]:
    """Show every warning in every test: Python shows a warning once per place."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield
