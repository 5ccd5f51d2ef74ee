"""Signals end a control loop between two ticks, and everything else at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from proctor.control.loop.stop_signals import StopSignals

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _hang_up_handler() -> Iterator[None]:
    """Restore the handler of SIGHUP, which stays ignored after the first one."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("signum", SIGNALS)
def test_outside_a_loop_a_signal_interrupts_at_once(signum: signal.Signals) -> None:
    with StopSignals() as signals, pytest.raises(KeyboardInterrupt) as stop:
        os.kill(os.getpid(), signum)
    assert stop.value.args == (signum,)
    assert signals.received is signum


@pytest.mark.parametrize("signum", SIGNALS)
def test_in_a_loop_the_first_signal_is_only_noted(signum: signal.Signals) -> None:
    with StopSignals() as signals, signals.deferred():
        os.kill(os.getpid(), signum)
        assert signals.received is signum
    stop = signals.as_interrupt()
    assert stop is not None
    assert stop.args == (signum,)


def test_in_a_loop_the_second_signal_interrupts() -> None:
    with StopSignals() as signals, signals.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signals.received is signal.SIGTERM


def test_a_second_hang_up_is_ignored_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals, signals.deferred():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_signal_there_is_nothing_to_raise() -> None:
    with StopSignals() as signals:
        assert signals.as_interrupt() is None
