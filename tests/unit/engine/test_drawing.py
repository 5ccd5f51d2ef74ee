"""A bound on how many draw at a time: kept by all processes, and by no dead one."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from measurements.forked import forked

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.engine import drawing
from proctor.engine.drawing import DrawSlots, TurnTakingSim
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from tests.conftest import digests


@pytest.fixture
def children() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Runs things in processes of their own; those that are left are killed."""
    pids: list[int] = []

    def run(work: Callable[[], None]) -> int:
        pids.append(forked(work))
        return pids[-1]

    yield run
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


Children = Callable[[Callable[[], None]], int]


def hold(slots: DrawSlots, said: int) -> None:
    with slots.drawing():
        os.write(said, b"drawing")
        time.sleep(60)


def seconds_to_draw(slots: DrawSlots) -> float:
    began = time.monotonic()
    with slots.drawing():
        return time.monotonic() - began


def test_as_many_draw_at_a_time_as_there_are_slots_and_no_more(children: Children) -> None:
    slots, (reader, writer) = DrawSlots(2), os.pipe()
    at_it, met = mmap.mmap(-1, 5), mmap.mmap(-1, 1)

    def draw(number: int) -> None:
        for _ in range(5):
            with slots.drawing():
                began, at_it[number] = time.monotonic(), 1
                # However busy the machine: the first waits for a second.
                while not met[0] and time.monotonic() < began + 20:
                    met[0] = at_it[:].count(1) >= 2
                time.sleep(0.004)
                ended, at_it[number] = time.monotonic(), 0
            os.write(writer, struct.pack("dd", began, ended))

    for number in range(5):
        children(partial(draw, number))
    drawn = [struct.unpack("dd", os.read(reader, 16)) for _ in range(25)]
    at_once = [sum(b <= began < e for b, e in drawn) for began, _ in drawn]
    assert max(at_once) == 2


def test_one_that_is_killed_while_drawing_keeps_no_slot(children: Children) -> None:
    slots, (reader, writer) = DrawSlots(1), os.pipe()
    pid = children(lambda: hold(slots, writer))
    assert os.read(reader, 7) == b"drawing"
    os.kill(pid, signal.SIGKILL)
    assert seconds_to_draw(slots) < drawing.PATIENCE_S / 2


def test_one_that_is_killed_first_in_line_lets_the_next_one_forward(children: Children) -> None:
    slots, (reader, writer) = DrawSlots(1), os.pipe()
    holds = children(lambda: hold(slots, writer))
    assert os.read(reader, 7) == b"drawing"
    waits = children(lambda: hold(slots, writer))
    time.sleep(0.05)
    os.kill(waits, signal.SIGKILL)
    os.kill(holds, signal.SIGKILL)
    assert seconds_to_draw(slots) < drawing.PATIENCE_S / 2


def test_one_that_hangs_while_drawing_does_not_stop_the_others(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PATIENCE_S", 0.1)
    slots, (reader, writer) = DrawSlots(1), os.pipe()
    children(lambda: hold(slots, writer))
    assert os.read(reader, 7) == b"drawing"
    assert 0.1 <= seconds_to_draw(slots) < 10


def test_only_what_is_drawn_waits_for_a_slot(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PATIENCE_S", 0.3)
    benchmark = Fake(FakeConfig())
    slots, (reader, writer) = DrawSlots(1), os.pipe()
    sim = TurnTakingSim(benchmark.make_sim(benchmark.tasks()[0]), benchmark, slots)
    sim.reset(benchmark.spec(benchmark.tasks()[0], 0, 0))
    children(lambda: hold(slots, writer))
    assert os.read(reader, 7) == b"drawing"
    began = time.monotonic()
    sim.observe(["observation.state"])
    assert time.monotonic() - began < drawing.PATIENCE_S
    sim.observe(["observation.image", "observation.state"])
    assert time.monotonic() - began >= drawing.PATIENCE_S


def test_a_bound_on_drawing_changes_no_episode_and_no_fingerprint(
    run: Callable[..., Evaluation],
) -> None:
    load = {"policy__inputs": "observation.image", "policy__n_action_steps": 3}
    free = run(**load, eval__use_async_envs=False)
    bounded = run(**load, eval__batch_size=3, eval__draw_slots=1)
    assert digests(bounded) == digests(free)
    assert sum(row.renders or 0 for row in bounded.rows) > 0
    resumed = run(**load, eval__draw_slots=2, resume=True, output_dir=str(free.path))
    assert digests(resumed) == digests(free)  # else it would be refused as another evaluation


def test_lockstep_has_no_bound_on_drawing(run: Callable[..., Evaluation]) -> None:
    with pytest.raises(UsageError, match="draw_slots: lockstep"):
        run(eval__draw_slots=2, eval__scheduler="lockstep")
    with pytest.raises(UsageError, match=r"--eval\.draw_slots must be at least 1, got 0"):
        run(eval__draw_slots=0)
