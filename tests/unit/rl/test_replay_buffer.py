"""The replay buffer beyond LeRobot's goldens: bytes, files, several episodes, refusals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from proctor.errors import ProtocolError, RunFolderError, UsageError
from proctor.rl.replay.buffer import (
    PAD,
    ReplayBuffer,
    ReplaySettings,
    SampleDraws,
    Shifts,
    shift_images,
)
from proctor.rl.replay.mixer import IS_DEMONSTRATION, OnlineOfflineMixer
from proctor.rl.transitions import Transition, TransitionBatch
from tests.unit.rl.transition_cases import FRONT, STATE, episode


def filled(transitions: list[Transition], capacity: int = 50, **options: object) -> ReplayBuffer:
    options = {"shift_images": False} | options
    buffer = ReplayBuffer(ReplaySettings(capacity, **options))
    for transition in transitions:
        buffer.add(transition)
    return buffer


def rows(buffer: ReplayBuffer, *which: int) -> TransitionBatch:
    return buffer.gather(SampleDraws(torch.tensor(which), None))


def test_camera_pixels_survive_the_storage_as_bytes_exactly() -> None:
    steps = episode(3)
    as_floats = [
        Transition(
            step.observation | {FRONT: step.observation[FRONT].astype(np.float32) / 255},
            step.action,
            step.reward,
            step.next_observation | {FRONT: step.next_observation[FRONT].astype(np.float32) / 255},
            step.done,
        )
        for step in steps
    ]
    from_bytes = rows(filled(steps), 0, 1).observation[FRONT]
    from_floats = rows(filled(as_floats), 0, 1).observation[FRONT]

    assert torch.equal(from_bytes, from_floats)
    assert torch.equal(from_floats[1], torch.from_numpy(as_floats[1].observation[FRONT]))


def test_every_next_observation_is_its_own_with_the_fix() -> None:
    interventions = [step for step in episode(8, 5) if step.is_intervention]  # no two neighbours
    steps = [*episode(4, 1, truncated=True), *episode(3, 2), *interventions, *episode(5, 3)]
    for capacity in (3, 7, len(steps), 50):
        buffer = filled(steps, capacity, own_next=True)
        kept = steps[-capacity:]
        at = [(len(steps) - len(kept) + i) % capacity for i in range(len(kept))]
        batch = rows(buffer, *at)
        for key in (STATE, FRONT):
            expected = np.stack([step.next_observation[key] for step in kept])
            scale = 255 if key == FRONT else 1
            assert torch.equal(
                batch.next_observation[key], torch.from_numpy(expected).float() / scale
            )
        assert buffer.n_sampleable == len(kept)


def test_a_large_buffer_lies_in_a_mapped_file_and_samples_the_same(tmp_path: Path) -> None:
    steps = [*episode(6, 1, truncated=True), *episode(7, 2)]
    for own_next in (False, True):
        options = {"own_next": own_next, "shift_images": True}
        here = filled(steps, 10, **options)
        mapped = filled(steps, 10, mapped_above_bytes=1000, folder=tmp_path, **options)
        batches = [buffer.sample(8, torch.Generator().manual_seed(4)) for buffer in (here, mapped)]
        for key in (STATE, FRONT):
            assert torch.equal(batches[0].observation[key], batches[1].observation[key])
            assert torch.equal(batches[0].next_observation[key], batches[1].next_observation[key])
    assert not list(tmp_path.iterdir())  # the file has no name: a kill leaves nothing behind


def test_a_full_disk_is_an_error_not_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(RunFolderError) as caught:
        filled(episode(2), 10, mapped_above_bytes=1000, folder=tmp_path)
    assert caught.value.code == "rl.buffer-disk-full"


@pytest.mark.parametrize(("height", "width"), [(7, 11), (4, 3)])
def test_shifting_equals_padding_and_cropping(height: int, width: int) -> None:
    given = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (81, 3, height, width), generator=given)
    corners = torch.arange(9)
    shifts = Shifts(corners.repeat_interleave(9), corners.repeat(9))  # all that can be drawn
    padded = torch.nn.functional.pad(images.float(), (PAD,) * 4, mode="replicate")
    found = shift_images(images, shifts)
    for i, (top, left) in enumerate(zip(shifts.top, shifts.left, strict=True)):
        crop = padded[i, :, top : top + height, left : left + width]
        assert torch.equal(found[i].float(), crop)


def test_a_sample_depends_on_the_generator_only() -> None:
    buffer = filled(episode(9), shift_images=True)
    one, same, other = (buffer.sample(4, torch.Generator().manual_seed(k)) for k in (1, 1, 2))

    assert torch.equal(one.observation[FRONT], same.observation[FRONT])
    assert not torch.equal(one.action, other.action)


def test_only_the_wanted_keys_are_stored() -> None:
    batch = rows(filled(episode(3), keys=[STATE]), 0)

    assert list(batch.observation) == list(batch.next_observation) == [STATE]


def test_a_transition_of_another_shape_is_refused_and_changes_nothing() -> None:
    buffer = filled(episode(3))
    for wrong in (episode(1, size=(6, 9)), episode(1, size=None)):
        with pytest.raises(ProtocolError) as caught:
            buffer.add(wrong[0])
        assert caught.value.code == "rl.transition-mismatch"
    assert buffer.total == 3


def test_too_few_transitions_cannot_be_sampled() -> None:
    buffer = filled(episode(1))
    with pytest.raises(UsageError) as caught:
        buffer.sample(1, torch.Generator())
    assert caught.value.code == "rl.buffer-empty"
    with pytest.raises(UsageError) as caught:
        ReplayBuffer(ReplaySettings(0))
    assert caught.value.code == "rl.buffer-capacity"


def test_a_mixed_batch_has_online_rows_first_and_marks_demonstrations() -> None:
    online, offline = filled(episode(6, 1)), filled(episode(6, 2))
    batch = OnlineOfflineMixer(online, offline, 5).sample(torch.Generator().manual_seed(0))

    assert batch.complementary_info[IS_DEMONSTRATION].tolist() == [0, 0, 1, 1, 1]
    assert batch.observation[FRONT].shape == (5, 3, 6, 8)
    demonstrated = {tuple(step.action.tolist()) for step in episode(6, 2)}
    assert [tuple(action.tolist()) in demonstrated for action in batch.action] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_without_demonstrations_lerobot_samples_half_a_batch_and_the_fix_a_whole_one() -> None:
    online = filled(episode(20))
    generator = torch.Generator().manual_seed(0)

    assert len(OnlineOfflineMixer(online, None, 8).sample(generator).reward) == 4
    assert len(OnlineOfflineMixer(online, None, 8, full_batch=True).sample(generator).reward) == 8
