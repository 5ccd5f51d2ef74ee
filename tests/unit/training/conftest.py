"""One dataset for all tests of a session: nobody writes to it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Networks this small lose more by threads that wait for each other than they gain."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    from .making import write_numbers

    return write_numbers(tmp_path_factory.mktemp("data") / "numbers")
