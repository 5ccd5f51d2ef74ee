"""Same bits whatever the load, unless somebody asks for the last five percent."""

from __future__ import annotations

from proctor.config.base import STRICT_BATCH
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig

ASKED = {"policy": {"type": "act"}, "env": {"type": "fake"}}


def test_batches_have_one_size_unless_asked_otherwise() -> None:
    assert build(EvalConfig, ASKED).played_policy.pad_to == STRICT_BATCH
    assert build(EvalConfig, {**ASKED, "eval": {"strict": False}}).played_policy.pad_to is None
