"""A GR00T checkpoint served over GR00T's protocol acts as in process, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from tests.conftest import digests
from tests.tiny_families import SIDE, checkpoint_of, tiny_models
from tests.unit.protocols.serving import served

pytestmark = pytest.mark.vla


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


def test_a_served_checkpoint_acts_as_the_native_one(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    folder = str(checkpoint_of("groot", tmp_path))
    played = {
        "env__image_size": SIDE, "env__episode_length": 9, "eval__n_episodes": 2,
        "eval__use_async_envs": False,
    }  # fmt: skip
    native = {"policy__type": "pretrained", "policy__path": folder}
    wanted = digests(run(**native, **played, policy__overrides={"device": "cpu"}))
    settings = {**native, "policy__overrides": {"device": "cpu"}, "protocol": ["groot"]}
    with served(**settings, env__image_size=SIDE) as (url, _):
        found = digests(run(policy__type="remote", policy__url=url, **played))
    assert found == wanted
