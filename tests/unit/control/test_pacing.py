"""Ticks keep their period, and jitter is measured."""

from __future__ import annotations

import pytest

from proctor.control.loop.pacing import Pacer
from proctor.robots.base import RealClock
from tests.unit.control.trial_robots import VirtualClock


def test_ticks_start_at_multiples_of_the_period() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock, fps=10)
    times = []
    for _ in range(4):
        times.append(pacer.tick())
        clock.time += 0.03  # the work of the tick
    assert times == pytest.approx([0, 0.1, 0.2, 0.3])
    jitter = pacer.jitter()
    assert (jitter.ticks, jitter.overruns) == (4, 0)
    assert jitter.max_ms == pytest.approx(0, abs=1e-6)


def test_a_delay_shorter_than_a_period_is_caught_up() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock, fps=10)
    pacer.tick()
    clock.time += 0.15
    assert pacer.tick() == pytest.approx(0.15)
    assert pacer.tick() == pytest.approx(0.2)
    assert pacer.jitter().max_ms == pytest.approx(50)
    assert pacer.jitter().overruns == 0


def test_after_a_long_delay_the_schedule_starts_anew_and_the_overrun_is_counted() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock, fps=10)
    pacer.tick()
    clock.time += 1.0
    assert pacer.tick() == pytest.approx(1.0)
    assert pacer.tick() == pytest.approx(1.1)
    assert pacer.jitter().overruns == 1


def test_a_single_tick_has_no_jitter() -> None:
    pacer = Pacer(VirtualClock(), fps=30)
    pacer.tick()
    assert pacer.jitter().p99_ms is None
    assert "n/a" in str(pacer.jitter())


@pytest.mark.alone
def test_sixty_ticks_a_second_on_the_real_clock_have_little_jitter() -> None:
    jitters = []
    for _ in range(200):  # other programs delay some of these short tries, not all
        pacer = Pacer(RealClock(), fps=60)
        for _ in range(6):
            pacer.tick()
        jitters.append(pacer.jitter().p99_ms or 0)
        if jitters[-1] <= 3:
            break
    assert min(jitters) <= 3
    assert pacer.rate_hz == pytest.approx(60, rel=0.05)
