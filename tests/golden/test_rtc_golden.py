"""Real-time chunking against LeRobot: its weights, one step of it, whole chunks of SmolVLA."""

from __future__ import annotations

import json

import pytest
import torch
from recipes import GOLDEN, assert_close, recipe_input
from safetensors.torch import load_file

from proctor.policies.blocks.rtc import HAS_LEFT, LEFT_OVER, ChunkGuidance, prefix_weights
from proctor.policies.lerobot.config.mixins import read_rtc

TOLD = json.loads((GOLDEN / "misc.json").read_text())


@pytest.mark.parametrize("schedule", ["ZEROS", "ONES", "LINEAR", "EXP"])
def test_the_weights_of_the_old_chunk_match(schedule):
    rtc = read_rtc({"prefix_attention_schedule": schedule, "execution_horizon": 8})
    found = torch.tensor(prefix_weights(rtc, delay=3, left=12, chunk=12))
    assert_close(schedule, found, torch.tensor(TOLD["rtc_prefix_weights"][schedule]), 1e-6)


def test_one_step_matches_and_a_first_chunk_is_left_alone():
    guide = ChunkGuidance(read_rtc({"execution_horizon": 8}), chunk=12, action=3, every=5, delay=3)
    x, velocity = (recipe_input(name, [1, 12, 4], -1, 1) for name in ("xt", "v"))
    rest = torch.zeros(1, 12, 3)
    rest[:, :7] = recipe_input("prev", [1, 7, 3], -1, 1)
    found = guide.bend(velocity, x, 0.7, {LEFT_OVER: rest, HAS_LEFT: torch.ones(1)})
    assert_close("v_out", found, torch.tensor(TOLD["rtc_step"]["v_out"]), 1e-5)
    alone = guide.bend(velocity, x, 0.7, {LEFT_OVER: rest, HAS_LEFT: torch.zeros(1)})
    assert torch.equal(alone, velocity)


@pytest.mark.vla
@pytest.mark.parametrize(
    ("name", "schedule", "delay", "horizon"),
    [("linear", "LINEAR", 1, 4), ("exp", "EXP", 2, 10), ("zeros", "ZEROS", 2, 3)],
)
def test_smolvlas_chunks_are_led_as_lerobots_are(name, schedule, delay, horizon):
    from test_smolvla_run import RUN, inputs_of, network_of, noise_of

    rtc = {"prefix_attention_schedule": schedule, "execution_horizon": horizon}
    steps = {"n_action_steps": 2 + delay}  # so that of six steps four are left over
    network = network_of(rtc_config=rtc, **steps).eval()
    network.guide = ChunkGuidance(read_rtc(rtc), chunk=6, action=5, every=2, delay=delay)
    rest = torch.zeros(3, 6, 5)
    rest[:, :4] = recipe_input("left over", [3, 4, 5], -2, 2)
    inputs = inputs_of(load_file(RUN / "outputs.safetensors"))
    inputs |= {LEFT_OVER: rest, HAS_LEFT: torch.ones(3)}
    with torch.inference_mode():
        found = network.chunk(inputs, {"noise": noise_of("noise")})
    assert_close(name, found, load_file(GOLDEN / "rtc.safetensors")[name], 1e-4)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@torch.no_grad()
def test_what_is_left_leads_pis_chunks_and_only_as_far_as_it_goes(kind):
    from tiny_pi import FLOWS, tiny_flow

    network, inputs, _ = tiny_flow(next(name for name in FLOWS if name.startswith(f"{kind}")))
    config = network.config
    noise = {"noise": inputs["noise"]}
    rows, size = len(inputs["noise"]), (config.chunk_size, config.action_dim)
    free = network.chunk(inputs, noise)
    rest = recipe_input("rest", [rows, *size], -1, 1)
    rtc = read_rtc({"prefix_attention_schedule": "ZEROS", "execution_horizon": 2})
    network.guide = ChunkGuidance(rtc, *size, every=1, delay=2)
    led = network.chunk({**inputs, LEFT_OVER: rest, HAS_LEFT: torch.ones(rows)}, noise)
    alone = network.chunk({**inputs, LEFT_OVER: rest, HAS_LEFT: torch.zeros(rows)}, noise)
    assert torch.equal(alone, free)
    far, near = ((chunk - rest)[:, :2].abs().mean() for chunk in (free, led))
    assert near < 0.2 * far
