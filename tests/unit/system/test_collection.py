"""The garbage collector is paused once, while a command starts."""

from __future__ import annotations

import gc

import pytest

from proctor.system import collection
from proctor.system.collection import collection_paused, resume_collection


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Behave as a process that has not paused the collector, and forget frozen objects."""
    monkeypatch.setattr(collection._Pause, "used", False)
    monkeypatch.setattr(collection._Pause, "active", False)
    yield
    gc.enable()
    gc.unfreeze()


def test_a_start_runs_without_collections_and_exempts_what_it_created():
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count()


def test_it_can_end_before_the_block_does():
    with collection_paused():
        resume_collection()
        assert gc.isenabled()
        gc.unfreeze()
    assert not gc.get_freeze_count()


def test_a_failed_start_switches_it_on():
    with pytest.raises(ValueError, match="torch"), collection_paused():
        raise ValueError("torch")
    assert gc.isenabled()


def test_only_the_first_start_of_a_process_pauses_it():
    with collection_paused():
        pass
    with collection_paused():
        assert gc.isenabled()


def test_a_collector_that_the_user_switched_off_stays_off():
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()
