"""Real-time chunking: what is left of an old chunk leads the new one, in whatever batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import digests
from tests.refusals import refuses

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.policies.blocks.rtc import (
    HAS_LEFT,
    LEFT_OVER,
    ChunkGuidance,
    make_guidance,
    rtc_notes,
    strength,
)
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.mixins import RtcConfig, read_rtc
from proctor.policies.remote.config import RemoteConfig
from proctor.policies.remote.policy import _check_rhythm
from proctor.policies.smolvla.config import PLUGIN, SmolVlaConfig
from proctor.protocols.inference_messages import ServerInfo

VLM = Path(__file__).parents[2] / "golden" / "data" / "smolvla_run" / "vlm"
GUIDE = ChunkGuidance(RtcConfig(execution_horizon=6), chunk=8, action=2, every=3, delay=2)


def test_a_state_keeps_what_is_left_at_the_next_query() -> None:
    chunks = torch.arange(2 * 8 * 2).reshape(2, 8, 2).float()
    states: list[Any] = [{}, {}]
    GUIDE.keep(chunks, states)
    for state, chunk in zip(states, chunks, strict=True):
        assert np.array_equal(state[LEFT_OVER][:5], chunk[3:].numpy())
        assert not state[LEFT_OVER][5:].any()
        assert state[HAS_LEFT] == 1
    assert GUIDE.weights == pytest.approx([1, 1, 3 / 4, 1 / 2, 1 / 4, 0, 0, 0])


def test_nothing_leads_where_nothing_is_left_or_it_is_off() -> None:
    config = SmolVlaConfig(chunk_size=8, n_action_steps=8)
    assert make_guidance(None, config, 8) is None
    assert make_guidance(RtcConfig(), config, 8) is None
    assert read_rtc({"enabled": False}) is None
    assert rtc_notes(None, None) == rtc_notes(RtcConfig(), GUIDE) == ()
    assert "real-time chunking" in rtc_notes(RtcConfig(), None)[0]


@pytest.mark.parametrize(
    ("raw", "code", "named"),
    [
        ({"horizon": 3}, "policy.unknown-field", "'horizon'"),
        ({"prefix_attention_schedule": "SOME"}, "policy.invalid-value", "'SOME'"),
        ({"max_guidance_weight": 0}, "policy.out-of-range", "max_guidance_weight"),
        ({"execution_horizon": -1}, "policy.out-of-range", "execution_horizon"),
        ({"mode": "trained"}, "policy.invalid-value", "'trained'"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(raw: dict[str, Any], code: str, named: str) -> None:
    with refuses(UsageError, code) as refused:
        read_rtc(raw)
    assert "rtc_config" in str(refused.value)
    assert named in str(refused.value)


def test_a_velocity_is_bent_most_at_noise_and_never_more_than_allowed() -> None:
    assert strength(1.0, 10.0) == 10.0
    assert strength(0.0, 10.0) == 10.0
    assert strength(0.5, 10.0) == pytest.approx(2.0)
    assert all(strength(n / 20, 10.0) <= 10.0 for n in range(21))


@pytest.mark.parametrize(
    ("flags", "every"),
    [({}, 6), ({"n_action_steps": 5}, 5), ({"latency_steps": 1}, 5), ({"n_action_steps": 9}, 6)],
    ids=str,
)
def test_a_server_that_leads_by_old_chunks_is_asked_as_often_as_it_was_told(
    flags: dict[str, Any], every: int
) -> None:
    asked = RemoteConfig(url="ws://here:1", **flags)
    served = ServerInfo("smolvla", {}, 2, n_action_steps=6, remembers=True)
    _check_rhythm(asked, served)
    _check_rhythm(asked, replace(served, asked_every=every))
    with refuses(UsageError, "policy.latency-too-long"):
        _check_rhythm(replace(asked, latency_steps=6), served)
    with refuses(UsageError, "policy.wrong-rhythm") as refused:
        _check_rhythm(asked, replace(served, asked_every=4))
    assert "every 4 steps" in str(refused.value)
    assert f"every {every};" in str(refused.value)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny SmolVLA that fits the fake benchmark."""
    benchmark = plugins.find_benchmark("fake")
    interface = interface_of(benchmark.make(benchmark.config(image_size=32)))
    config = SmolVlaConfig(
        chunk_size=6, n_action_steps=4, max_state_dim=4, max_action_dim=4, num_steps=3,
        num_vlm_layers=2, resize_imgs_with_padding=[32, 32], tokenizer_max_length=16,
        vlm_model_name=str(VLM),
    )  # fmt: skip
    policy: Any = PLUGIN.make(config, interface)
    folder = tmp_path_factory.mktemp("smolvla") / "checkpoint"
    write_checkpoint(policy.parts, folder)
    return str(folder)


@pytest.mark.vla
def test_load_scheduler_and_resume_change_no_episode_whose_chunks_are_led(
    run: Callable[..., Evaluation], checkpoint: str
) -> None:
    def play(**flags: Any) -> Evaluation:
        settings = {
            "policy__type": "pretrained",
            "policy__path": checkpoint,
            "policy__rtc_config": "{execution_horizon: 4}",
            "env__image_size": 32,
            "env__episode_length": 8,
            "env__endless": True,
            "eval__n_episodes": 4,
            "eval__use_async_envs": False,
            "eval__latency_steps": 2,
        }
        return run(**{**settings, **flags})

    alone = play(eval__batch_size=1)
    assert digests(play(eval__batch_size=3)) == digests(alone)
    assert digests(play(eval__batch_size=4, eval__scheduler="lockstep")) == digests(alone)
    some = play(eval__episodes=[1, 3])
    assert digests(play(output_dir=str(some.path), resume=True)) == digests(alone)
    free = play(policy__rtc_config="{enabled: false}", eval__batch_size=1)
    assert digests(free) != digests(alone), "the flag must do something"
    with pytest.raises(UsageError) as refused:
        play(output_dir=str(some.path), resume=True, policy__rtc_config="{execution_horizon: 3}")
    assert "policy.rtc_config" in str(refused.value)
    with refuses(UsageError, "policy.latency-too-long"):
        play(eval__latency_steps=3)
    with refuses(UsageError, "flag.conflict") as refused:
        play(policy__latency_steps=1)
    assert "--eval.latency_steps=1" in str(refused.value)
    with refuses(UsageError, "flag.unknown"):
        play(policy__overrides={"latency_steps": 1})
