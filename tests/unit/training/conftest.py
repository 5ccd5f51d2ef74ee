"""Fixtures of the training tests: one read-only dataset per session."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Use one thread: for networks this small, more threads are slower."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    from .builders import write_numbers

    return write_numbers(tmp_path_factory.mktemp("data") / "numbers")
