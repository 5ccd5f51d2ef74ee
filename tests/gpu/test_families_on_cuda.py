"""Every family on a CUDA device: a graph acts as what it was captured from, and as a CPU does.

`make test-gpu`. Nothing here needs a simulator, or the fixtures of other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.runtime import quantized
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.policies.runtime.runner import GraphRunner, Runner
from tests.tiny_families import LEARNT_IN_WORDS, TINY, checkpoint_of, first_actions, tiny_models

pytestmark = pytest.mark.gpu
WORDS = ("do it", "push the puck", "do it", "open the door of the safe", "go", "push the puck")
"""Of several lengths, so that several graphs are captured."""


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def made(kind: str, scratch: Path, device: str, **given: Any) -> ChunkPolicy:
    return ChunkPolicy(read_checkpoint(checkpoint_of(kind, scratch), given), device)


def acted(policy: ChunkPolicy, size: int) -> np.ndarray:
    return first_actions(policy, size, WORDS)


@pytest.mark.parametrize("kind", TINY)
def test_a_graph_acts_as_eager_kernels_and_as_a_cpu(scratch: Path, kind: str) -> None:
    policy = made(kind, scratch, "cuda")
    assert isinstance(policy.runner, GraphRunner) == policy.network.supports_cuda_graph
    replayed = [acted(policy, size) for size in (6, 4, 6)]
    policy.runner = Runner(policy._forward, policy.device, range(1, len(WORDS) + 1))
    eager = acted(policy, 6)
    np.testing.assert_array_equal(replayed[0], replayed[2])
    np.testing.assert_allclose(replayed[0], eager, atol=1e-4)
    np.testing.assert_allclose(replayed[1], eager, atol=2e-3)  # other sizes, other kernels
    # Products of a GPU are rounded (TF32), and an untrained diffusion makes much of it here and
    # there: 0.07 in one number of a Diffusion on an H200, 0.005 in most.
    apart = np.abs(eager - acted(made(kind, scratch, "cpu"), 6))
    assert apart.mean() < 5e-3
    assert np.median(apart) < 2e-3


@pytest.mark.parametrize("kind", TINY)
def test_strict_is_the_same_bits_whatever_the_batch(scratch: Path, kind: str) -> None:
    policy = made(kind, scratch, "cuda", pad_to=8)
    together = acted(policy, 6)
    for size in (1, 4):
        np.testing.assert_array_equal(acted(policy, size), together)


@pytest.mark.parametrize("kind", LEARNT_IN_WORDS)
def test_in_bfloat16_and_as_int8_a_graph_acts_as_eager_kernels(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(quantized, "_FEWEST", 64)
    for given in ({"dtype": "bfloat16"}, {"quantize": "int8"}):
        policy = made(kind, scratch, "cuda", **given)
        replayed = acted(policy, 6)
        policy.runner = Runner(policy._forward, policy.device, range(1, len(WORDS) + 1))
        np.testing.assert_allclose(replayed, acted(policy, 6), atol=2e-2)


@pytest.mark.parametrize("kind", ["act", "smolvla", "pi0", "xvla"])
def test_what_is_compiled_is_captured_too(scratch: Path, kind: str) -> None:
    plain = acted(made(kind, scratch, "cuda"), 6)
    compiled = acted(made(kind, scratch, "cuda", compile=True), 6)
    np.testing.assert_allclose(compiled, plain, atol=2e-3)
    torch._dynamo.reset()
