"""Adapters of policies with a language model: two steps, saved, loaded, same actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import digests
from tests.tiny_families import SIDE, checkpoint_of, tiny_models

from .builders import RUN, words, write_seen
from .test_peft import LAST, as_trained, train

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from safetensors.torch import load_file  # noqa: E402

from proctor.policies.base import Batch, Query  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint  # noqa: E402
from proctor.types import EpisodeSpec, Task  # noqa: E402

pytestmark = pytest.mark.vla
CHOSEN = {
    "smolvla": None,
    "pi0": None,
    "pi05": None,
    "pi0_fast": "[q_proj,v_proj]",
    "xvla": "[qkv,proj,q_proj,v_proj,fc1]",
    "groot": None,
}
"""Target layers; None: the family's default."""


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def seen(scratch: Path) -> Path:
    return write_seen(scratch / "seen", key="observation.image", side=SIDE)


def adapt(seen: Path, base: Path, output: Path, targets: str | None) -> Path:
    how: dict[str, Any] = {"policy.path": base, "policy.device": "cpu", "peft.r": 2}
    how |= {"optimizer.lr": 1e-1, "steps": 2, "num_workers": 0}
    how |= {} if targets is None else {"peft.target_modules": targets}
    train(*words(seen, output, RUN, how))
    return output / LAST


def chunks(parts: LoadedCheckpoint) -> np.ndarray:
    policy = ChunkPolicy(parts, "cpu")
    drawn = np.random.default_rng(0)
    specs = [EpisodeSpec(Task("s", n, f"t{n}", f"do {n}", 9, 9), n, 0) for n in range(3)]
    queries = [Query(spec, 0, policy.new_episode(spec)) for spec in specs]
    state = drawn.normal(size=(3, 1, 2)).astype(np.float32)
    picture = drawn.integers(0, 256, (3, 1, SIDE, SIDE, 3), dtype=np.uint8)
    return policy.act(Batch(queries, {"observation.state": state, "observation.image": picture}))


@pytest.mark.parametrize("kind", CHOSEN)
def test_two_steps_of_an_adapter_are_saved_loaded_and_played_as_they_were_learnt(
    seen: Path, scratch: Path, tmp_path: Path, run: Callable[..., Any], kind: str
) -> None:
    base = checkpoint_of(kind, scratch)
    folder = adapt(seen, base, tmp_path / "run", CHOSEN[kind])
    learnt = load_file(folder / "adapter_model.safetensors")
    assert all(value.abs().max() > 0 for name, value in learnt.items() if ".lora_B." in name)
    found = chunks(read_checkpoint(folder))
    np.testing.assert_allclose(found, chunks(as_trained(folder)), atol=1e-5)
    assert np.abs(found - chunks(read_checkpoint(base))).max() > 1e-3
    play = {
        "policy__type": "pretrained", "policy__path": str(folder), "env__image_size": SIDE,
        "env__episode_length": 5, "env__endless": True, "eval__n_episodes": 3,
        "eval__use_async_envs": False,
    }  # fmt: skip
    alone, distributed = (run(eval__batch_size=size, **play) for size in (1, 3))
    assert digests(distributed) == digests(alone)
