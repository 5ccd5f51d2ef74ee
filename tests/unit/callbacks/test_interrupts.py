"""Stop signals: handled while a command runs, and restored after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from proctor.callbacks import interrupts
from proctor.callbacks.interrupts import Interrupts
from proctor.runs.records import RunProgress

PROGRESS = RunProgress(elapsed_s=4.0, steps=50, batches=0, batched_requests=0)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_every_stop_signal_raises_keyboard_interrupt_with_its_name(number: signal.Signals) -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt) as stop:
        os.kill(os.getpid(), number)
    assert stop.value.args == (number,)


def test_earlier_handlers_are_restored_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert all(signal.getsignal(n) not in before for n in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(ValueError, match="no"), Interrupts():
        raise ValueError("no")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_second_sighup_is_ignored() -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)  # the shell's, after the kernel's
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_under_nohup_sighup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_swallowed_interrupt_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LOST_AFTER_S", 0.0)
    with Interrupts() as callback:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as stop:
            callback.on_progress(PROGRESS)
        callback.on_progress(PROGRESS)  # once
    assert stop.value.args == (signal.SIGTERM,)


def test_signals_that_come_together_are_one() -> None:
    def stop_and_close() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGTERM)

    with Interrupts(settle_s=60.0), pytest.raises(KeyboardInterrupt) as stop:
        stop_and_close()
    assert stop.value.args == (signal.SIGINT,)


def test_a_signal_after_the_settling_time_interrupts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter((10.0, 10.5, 11.5, 11.5))
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(moments))
    with Interrupts(settle_s=1.0):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
