"""SIGTERM and SIGHUP inside a command."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from proctor.system.signals import termination_raises


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_interrupts_once_and_the_earlier_handler_comes_back(
    signum: signal.Signals,
) -> None:
    before = signal.getsignal(signum)
    with termination_raises():
        with pytest.raises(KeyboardInterrupt) as stop:
            os.kill(os.getpid(), signum)
        os.kill(os.getpid(), signal.SIGTERM)  # of the same request: cleaning up goes on
        os.kill(os.getpid(), signal.SIGHUP)
    assert stop.value.args == (signum,)
    assert signal.getsignal(signum) == before


def test_a_hang_up_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_raises():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_changes_no_handler() -> None:
    found = []

    def enter() -> None:
        with termination_raises():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
