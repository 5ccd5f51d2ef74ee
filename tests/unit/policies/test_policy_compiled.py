"""--policy.compile: the same actions, the same bits whatever the batch; one line where it fails.

Marked vla: most families have a language model, and tracing takes seconds of each.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.refusals import refuses
from tests.tiny_families import TINY, checkpoint_of, first_actions, tiny_models

from proctor.errors import PolicyError, UsageError
from proctor.policies.act.network import DetrEncoder
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.runtime.chunk_policy import ChunkPolicy

pytestmark = pytest.mark.vla
pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    """torch counts what was compiled of a function, whichever network it was for."""
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def check(folder: Path, tolerance: float) -> None:
    expected = first_actions(ChunkPolicy(read_checkpoint(folder), "cpu"), 6)
    policy = ChunkPolicy(read_checkpoint(folder, {"compile": True}), "cpu")
    together = first_actions(policy, 4)
    np.testing.assert_allclose(together, expected, atol=tolerance)
    for size in (1, 6, 4):
        np.testing.assert_array_equal(first_actions(policy, size), together)
    assert policy.protocol()["config"]["compile"] is True


OTHERS = ("act", "diffusion", "groot", "groot_n15")
"""Whose parts are those of others, or traced by tests of trainings."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k in OTHERS else []) for k in TINY]
)
def test_a_traced_policy_acts_as_the_plain_one_whatever_the_batch(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Traced whole, by what compiles; the kernels are torch's usual ones, which is quick."""
    whole = partialmethod(_compile_quickly, torch.nn.Module.compile)
    monkeypatch.setattr(torch.nn.Module, "compile", whole)
    check(checkpoint_of(kind, scratch), tolerance=1e-6)


def _compile_quickly(module: Any, untouched: Any, **how: Any) -> None:
    assert how == {"backend": "inductor", "mode": None, "dynamic": False}
    untouched(module, **how | {"backend": "eager", "fullgraph": True})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("kind", TINY)
def test_a_compiled_policy_acts_as_the_plain_one_whatever_the_batch(
    scratch: Path, kind: str
) -> None:
    check(checkpoint_of(kind, scratch), tolerance=1e-4)


def test_without_a_compiler_it_is_refused_in_one_line(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    parts = read_checkpoint(checkpoint_of("act", scratch), {"compile": True})
    with refuses(UsageError, "policy.compiler-missing") as refused:
        ChunkPolicy(parts, "cpu")
    assert str(refused.value).startswith("--policy.compile: ")
    assert "'no-such-compiler'" in str(refused.value)


def test_what_cannot_be_compiled_is_one_line(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: DetrEncoder, *given: Any) -> None:
        raise torch._dynamo.exc.Unsupported("a loop\nover something")

    monkeypatch.setattr(DetrEncoder, "forward", broken)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **how: None)
    policy = ChunkPolicy(read_checkpoint(checkpoint_of("act", scratch), {"compile": True}), "cpu")
    with refuses(PolicyError, "policy.compile-failed") as refused:
        first_actions(policy, 6)
    assert "over something" in str(refused.value)
    assert "--policy.compile=false" in str(refused.value)
