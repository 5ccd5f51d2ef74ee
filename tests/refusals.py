"""Check an error by its type and code, so that its wording can change freely."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from proctor.errors import ProctorError


@contextlib.contextmanager
def refuses(kind: type[ProctorError], code: str) -> Iterator[pytest.ExceptionInfo[ProctorError]]:
    """Expect the block to raise ``kind`` with ``code``; the yielded ``value`` is the error."""
    with pytest.raises(kind) as refused:
        yield refused
    assert refused.value.code == code
