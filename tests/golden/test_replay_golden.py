"""Replay buffers against LeRobot 0.6.1's own: what a sample returns for given random numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from recipes import GOLDEN, hash_input
from safetensors.torch import load_file

from proctor.rl.replay.buffer import ReplayBuffer, ReplaySettings, SampleDraws, Shifts
from proctor.rl.replay.mixer import OnlineOfflineMixer
from proctor.rl.transitions import Transition, TransitionBatch

FRONT = "observation.images.front"
STATE = "observation.state"


def transitions(case: str) -> list[Transition]:
    given = load_file(GOLDEN / case / "inputs.safetensors")
    has_images = "no image" not in notes(case)["image_recipe"]
    found: list[Transition] = []
    for i in range(notes(case)["transitions"]):
        of = {
            key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"t{i}.")
        }
        now = {STATE: of["state.observation.state"][0].numpy()}
        after = {STATE: of["next_state.observation.state"][0].numpy()}
        if has_images:
            last = found[-1] if found else None
            starts = last is None or last.done or last.truncated
            now[FRONT] = image(case, f"imgs{i}") if starts else last.next_observation[FRONT]
            after[FRONT] = image(case, f"imgn{i}")
        info = {
            "discrete_penalty": float(of["complementary_info.discrete_penalty"]),
            "is_intervention": float(of["complementary_info.is_intervention"]),
        }
        done, truncated = bool(of["done"]), bool(of["truncated"])
        action = of["action"][0].numpy()
        found.append(Transition(now, action, float(of["reward"]), after, done, truncated, info))
    return found


def image(case: str, name: str) -> np.ndarray:
    return hash_input(f"{case}:{name}", [3, 16, 18], 0, 1).numpy()


def notes(case: str) -> dict[str, object]:
    return json.loads((GOLDEN / case / "notes.json").read_text())


def filled(case: str, **options: object) -> ReplayBuffer:
    config = json.loads((GOLDEN / case / "config.json").read_text())
    buffer = ReplayBuffer(ReplaySettings(config["capacity"], image_dtype="float32", **options))
    for transition in transitions(case):
        buffer.add(transition)
    return buffer


def given_draws(case: str) -> SampleDraws:
    given = load_file(GOLDEN / case / "inputs.safetensors")
    has_shifts = "shift_top" in given
    shifts = Shifts(given["shift_top"], given["shift_left"]) if has_shifts else None
    return SampleDraws(given["idx"], shifts)


def flat(batch: TransitionBatch) -> dict[str, torch.Tensor]:
    found = {"action": batch.action, "reward": batch.reward, "done": batch.done}
    found["truncated"] = batch.truncated
    found |= {f"state.{key}": value for key, value in batch.observation.items()}
    found |= {f"next_state.{key}": value for key, value in batch.next_observation.items()}
    found |= {f"complementary_info.{key}": value for key, value in batch.complementary_info.items()}
    return {f"batch.{key}": value for key, value in found.items()}


@pytest.mark.parametrize(
    ("case", "own_next"), [("replay_optimised", False), ("replay_plain_wrap", True)]
)
def test_a_sample_equals_lerobots(case: str, own_next: bool) -> None:
    buffer = filled(case, own_next=own_next)
    expected = load_file(GOLDEN / case / "outputs.safetensors")

    found = flat(buffer.gather(given_draws(case)))

    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    assert len(buffer) == notes(case)["size_after"]
    assert buffer.total % buffer.settings.capacity == notes(case)["position_after"]


@pytest.mark.parametrize(
    ("case", "own_next"), [("replay_optimised", False), ("replay_plain_wrap", True)]
)
def test_the_random_numbers_are_drawn_as_lerobot_draws_them(case: str, own_next: bool) -> None:
    buffer = filled(case, own_next=own_next)
    calls = notes(case)["randint_calls"]
    draws = buffer.draw(calls[0]["size"][0], torch.Generator().manual_seed(3))

    again = torch.Generator().manual_seed(3)
    expected = [
        torch.randint(call["low"], call["high"], call["size"], generator=again) for call in calls
    ]
    drawn = [draws.rows]
    if draws.shifts is not None:
        drawn += [draws.shifts.top, draws.shifts.left]
    assert len(drawn) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_a_truncated_step_gets_its_own_next_observation_with_the_fix() -> None:
    case = "replay_optimised"
    steps = transitions(case)
    rows = torch.arange(len(steps) - 1)
    lerobot = filled(case, shift_images=False).gather(SampleDraws(rows, None))
    fixed = filled(case, shift_images=False, own_next=True).gather(SampleDraws(rows, None))

    truncated = [i for i, step in enumerate(steps[:-1]) if step.truncated and not step.done]
    assert truncated
    for key in (STATE, FRONT):
        own = torch.stack([torch.from_numpy(step.next_observation[key]) for step in steps[:-1]])
        assert torch.equal(fixed.next_observation[key], own)
        for i in truncated:  # LeRobot's: the first observation of the next episode
            first = torch.from_numpy(steps[i + 1].observation[key])
            assert torch.equal(lerobot.next_observation[key][i], first)


@pytest.mark.parametrize(
    "given", json.loads((GOLDEN / "replay_optimised/mixer.json").read_text()), ids=str
)
def test_a_batch_is_split_as_lerobot_splits_it(given: dict[str, object]) -> None:
    buffer = filled("replay_plain_wrap")
    mixer = OnlineOfflineMixer(buffer, buffer, given["batch"], given["online_ratio"])

    assert dict(zip(("online", "offline"), mixer.sizes, strict=True)) == dict(given["sizes"])
