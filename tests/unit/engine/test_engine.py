"""The engine: the same episodes however workers, policies and simulators behave."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig, Fault
from proctor.cli import main
from proctor.engine.processes.in_process import InProcessPool
from proctor.engine.transport.messages import Order
from proctor.errors import PolicyError, UsageError, WorkerError
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.policies.base import Batch, PolicyPlugin
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.types import Outcome
from tests.conftest import digests
from tests.refusals import refuses

FAULTS = [fault.value for fault in Fault]
SILENT = (Fault.HANG.value, Fault.STOP.value)


def watchdog_of(fault: str) -> float:
    """Return a limit that ends a silent worker soon, and no worker where all of them answer."""
    return 2.0 if fault in SILENT else 120.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    from proctor import evaluate

    return evaluate(
        policy={"type": "random", "inputs": ["observation.image"], "n_action_steps": 3},
        env={"type": "fake", "n_tasks": 3},
        eval={"n_episodes": 4, "batch_size": 1, "use_async_envs": False},
        output_dir=tmp_path_factory.mktemp("undisturbed") / "run",
    )


LOAD = {"policy__inputs": "observation.image", "policy__n_action_steps": 3, "env__n_tasks": 3}


@pytest.mark.parametrize("batch_size", [2, 5])
@pytest.mark.parametrize("scheduler", ["continuous", "lockstep"])
@pytest.mark.parametrize("use_async_envs", [True, False])
def test_episodes_are_the_same_whatever_the_parallelism(
    run: Callable[..., Evaluation],
    undisturbed: Evaluation,
    batch_size: int,
    scheduler: str,
    use_async_envs: bool,
) -> None:
    evaluation = run(
        **LOAD,
        eval__batch_size=batch_size,
        eval__scheduler=scheduler,
        eval__use_async_envs=use_async_envs,
    )
    assert digests(evaluation) == digests(undisturbed)


@pytest.mark.parametrize("policy", ["expert", "zero"])
def test_policies_beside_the_simulator_and_in_the_engine_agree_with_lockstep(
    run: Callable[..., Evaluation], policy: str
) -> None:
    continuous = run(policy__type=policy, env__n_tasks=2)
    lockstep = run(policy__type=policy, env__n_tasks=2, eval__scheduler="lockstep")
    assert digests(continuous) == digests(lockstep)


def test_bounding_parallel_tasks_changes_nothing_but_the_order(
    run: Callable[..., Evaluation], undisturbed: Evaluation
) -> None:
    evaluation = run(**LOAD, env__max_parallel_tasks=1, eval__batch_size=3)
    assert digests(evaluation) == digests(undisturbed)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_breaks_once_costs_a_retry_and_changes_no_episode(
    run: Callable[..., Evaluation], undisturbed: Evaluation, tmp_path: Path, fault: str
) -> None:
    evaluation = run(
        **LOAD,
        eval__batch_size=2,
        eval__watchdog_s=watchdog_of(fault),
        env__faults={"1/2/4": fault},
        env__break_once_in=str(tmp_path),
    )
    assert digests(evaluation) == digests(undisturbed)
    assert {row.key: row.attempts for row in evaluation.rows if row.attempts > 1} == {
        ("point", 1, 2): 2
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_a_simulator_that_keeps_breaking_is_an_error_beside_the_rate(
    run: Callable[..., Evaluation], undisturbed: Evaluation, fault: str
) -> None:
    limit_s = watchdog_of(fault)
    evaluation = run(
        **LOAD, eval__watchdog_s=limit_s, eval__max_retries=1, env__faults={"1/2/0": fault}
    )
    errored = [row for row in evaluation.rows if row.outcome is Outcome.ERROR]
    assert [row.key for row in errored] == [("point", 1, 2)]
    assert errored[0].attempts == 2
    assert errored[0].error
    assert errored[0].steps is None
    assert evaluation.tally.episodes == 11
    assert evaluation.tally.errors == 1
    others = {key: value for key, value in digests(undisturbed).items() if key != ("point", 1, 2)}
    assert {k: v for k, v in digests(evaluation).items() if k != ("point", 1, 2)} == others


def test_a_simulator_that_raises_in_process_is_retried_too(
    run: Callable[..., Evaluation], undisturbed: Evaluation, tmp_path: Path
) -> None:
    evaluation = run(
        **LOAD,
        eval__use_async_envs=False,
        env__faults={"0/1/2": "raise"},
        env__break_once_in=str(tmp_path),
    )
    assert digests(evaluation) == digests(undisturbed)


def test_the_error_text_holds_the_traceback(run: Callable[..., Evaluation]) -> None:
    evaluation = run(env__faults={"0/0/1": "raise"}, eval__max_retries=0)
    (errored,) = [row for row in evaluation.rows if row.error]
    assert errored.error is not None
    assert "Traceback" in errored.error
    assert "the simulator broke at 0/0/1" in errored.error


class BadPolicy(RandomPolicy):
    """Returns invalid actions at a given step."""

    def __init__(self, config: BadConfig, interface: Any) -> None:
        super().__init__(config, interface)
        self._fault = config.fault

    def act(self, batch: Batch) -> Array:
        chunks = super().act(batch)
        for row, query in enumerate(batch.queries):
            if query.step == 2 and query.spec.index == 1:
                if self._fault == "nan":
                    chunks[row, 0, 0] = np.nan
                elif self._fault == "shape":
                    return chunks[:, :, :1]
                elif self._fault == "exit":
                    sys.exit("no licence")
                elif self._fault == "interrupt":
                    raise KeyboardInterrupt
                else:
                    raise ValueError("weights\nare gone")
        return chunks


class BadConfig(RandomConfig):
    """Selects the fault."""

    fault: str = "nan"


def make_bad(fault: str) -> PolicyPlugin:
    def make(config: Any, interface: Any) -> BadPolicy:
        config.fault = fault
        return BadPolicy(config, interface)

    return PolicyPlugin(RandomConfig, make, "bad")


NAN, SHAPE, RAISE = make_bad("nan"), make_bad("shape"), make_bad("raise")
EXIT, INTERRUPT = make_bad("exit"), make_bad("interrupt")


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("scheduler", ["continuous", "lockstep"])
@pytest.mark.parametrize(
    ("plugin", "code", "named"),
    [
        ("NAN", "policy.not-finite", "point-0 episode 1 (seed 1001) at step 2"),
        ("SHAPE", "policy.wrong-shape", "point-0 episode"),
        ("RAISE", "policy.raised", "ValueError: weights are gone"),
        ("EXIT", "policy.raised", "SystemExit: no licence"),
    ],
)
def test_a_policy_that_returns_nonsense_stops_the_run_and_is_named(
    run: Callable[..., Evaluation],
    batch_size: int,
    scheduler: str,
    plugin: str,
    code: str,
    named: str,
) -> None:
    with refuses(PolicyError, code) as refused:
        run(
            policy__type=f"tests.unit.engine.test_engine:{plugin}",
            eval__batch_size=batch_size,
            eval__scheduler=scheduler,
        )
    assert "policy 'random'" in str(refused.value)
    assert named in str(refused.value)


@pytest.mark.parametrize("scheduler", ["continuous", "lockstep"])
def test_a_policy_that_interrupts_ends_the_run(
    run: Callable[..., Evaluation], scheduler: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(policy__type="tests.unit.engine.test_engine:INTERRUPT", eval__scheduler=scheduler)


@pytest.mark.parametrize("place", ["0/1", "point/0/1", "5/0/1", "0/0/51", "0/0/-1", ""])
def test_a_fault_at_a_place_that_no_step_has_is_refused(place: str) -> None:
    with refuses(UsageError, "flag.out-of-range"):
        Fake(FakeConfig(n_tasks=5, faults={place: Fault.RAISE}))


@pytest.mark.parametrize("clipped", [True, False])
def test_what_happens_to_actions_out_of_range_is_what_the_benchmark_says(
    clipped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Fake, "action", replace(Fake.action, clipped=clipped))
    flags = [
        "--policy.type=tests.unit.engine.test_engine:WILD",
        "--env.type=fake",
        "--eval.n_episodes=1",
    ]
    flags += ["--eval.use_async_envs=false", f"--output_dir={tmp_path / 'run'}"]
    assert main(["eval", *flags]) == 0
    fate = "are clipped" if clipped else "are not clipped but executed as they are"
    assert f"1 episode the policy left the action range; such actions {fate}\n" in (
        capsys.readouterr().out
    )


def test_out_of_range_actions_are_clipped_and_counted(run: Callable[..., Evaluation]) -> None:
    evaluation = run(policy__type="tests.unit.engine.test_engine:WILD", env__endless=True)
    assert [row.clipped_steps for row in evaluation.rows] == [50, 50, 50, 50]


class WildPolicy(RandomPolicy):
    """Leaves the action range with every action."""

    def act(self, batch: Batch) -> Array:
        return super().act(batch) + 2.5


WILD = PolicyPlugin(RandomConfig, WildPolicy, "wild")


def quiet(config: RandomConfig, interface: Any) -> RandomPolicy:
    """Random, by a factory."""
    return RandomPolicy(config, interface)


def test_a_policy_may_be_named_by_its_factory_alone(run: Callable[..., Evaluation]) -> None:
    evaluation = run(policy__type="tests.unit.engine.test_engine:quiet", policy__n_action_steps=5)
    assert digests(evaluation) == digests(run(policy__n_action_steps=5))


class NoStart(Fake):
    """Cannot be made inside a worker."""

    def __init__(self, config: FakeConfig) -> None:
        import multiprocessing

        if multiprocessing.parent_process() is not None:
            raise ImportError("no libEGL here")
        super().__init__(config)


def test_workers_that_cannot_start_end_the_run_at_once(run: Callable[..., Evaluation]) -> None:
    with refuses(WorkerError, "worker.failed") as refused:
        run(env__type="tests.unit.engine.test_engine:NO_START")
    assert "ImportError: no libEGL here" in str(refused.value)


def _no_start() -> Any:
    from proctor.benchmarks.base import BenchmarkPlugin

    return BenchmarkPlugin(FakeConfig, NoStart, "cannot start")


NO_START = _no_start()


def test_a_worker_that_has_started_does_not_wait_for_the_start_of_the_others(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, int]] = []

    class HeardPool(InProcessPool):
        def start(self, slot: int) -> None:
            heard.append(("start", slot))
            super().start(slot)

        def send(self, slot: int, order: Order) -> None:
            heard.append(("order", slot))
            super().send(slot, order)

    monkeypatch.setattr("proctor.engine.processes.in_process.InProcessPool", HeardPool)
    run(eval__batch_size=4, eval__use_async_envs=False)
    assert heard.index(("order", 0)) < heard.index(("start", 3))


def test_nothing_is_left_behind(run: Callable[..., Evaluation]) -> None:
    run()  # the fork server and the resource tracker stay; they belong to the process
    me = psutil.Process()
    children, descriptors, threads = (
        len(me.children(recursive=True)),
        me.num_fds(),
        threading.active_count(),
    )
    for _ in range(3):
        run(env__faults={"0/1/3": "kill"})
    assert len(me.children(recursive=True)) <= children
    assert me.num_fds() <= descriptors
    assert threading.active_count() <= threads


def test_workers_import_no_torch_and_do_not_run_the_users_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    script.write_text(
        "import multiprocessing, proctor\n"
        "assert multiprocessing.parent_process() is None, 'the script ran in a worker'\n"
        "run = proctor.evaluate(policy={'type': 'random'}, env={'type': 'fake'},\n"
        f"    eval={{'n_episodes': 4, 'batch_size': 2}}, video={{'episodes': 0}},\n"
        f"    output_dir={str(tmp_path / 'run')!r})\n"
        "print(run.tally.episodes, run.tally.errors)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "4 0\n"
    assert done.stderr == ""
