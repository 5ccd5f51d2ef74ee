"""Same bits whatever the load, unless somebody asks for the last five percent."""

from __future__ import annotations

from proctor.config.evaluation import STRICT_BATCH, config_from

ASKED = {"policy": {"type": "act"}, "env": {"type": "fake"}}


def test_batches_have_one_size_unless_asked_otherwise() -> None:
    assert config_from(ASKED).policy.pad_to == STRICT_BATCH
    assert config_from({**ASKED, "eval": {"strict": False}}).policy.pad_to is None
