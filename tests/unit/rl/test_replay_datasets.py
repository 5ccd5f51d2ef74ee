"""Replay buffers from datasets and datasets from replay buffers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("pyarrow", reason="datasets need pyarrow: pip install 'proctor[dataset]'")

from proctor.datasets import reader
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError, UsageError
from proctor.rl.link.links import ReceivedTransition
from proctor.rl.replay.buffer import ReplayBuffer, ReplaySettings, SampleDraws
from proctor.rl.replay.datasets import (
    dataset_transitions,
    fill_from_dataset,
    rewards_are_assumed,
    write_dataset,
)
from proctor.rl.transitions import Transition
from tests.unit.rl.toy_learner import open_learner, transition
from tests.unit.rl.transition_cases import FRONT, STATE, assert_same, episode


def buffer_of(steps: list[Transition], capacity: int = 100, **options: object) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplaySettings(capacity, shift_images=False, **options))
    for step in steps:
        buffer.add(step)
    return buffer


def all_rows(buffer: ReplayBuffer, n: int) -> dict[str, torch.Tensor]:
    batch = buffer.gather(SampleDraws(torch.arange(n), None))
    found = {"action": batch.action, "reward": batch.reward, "done": batch.done}
    found |= batch.observation | batch.complementary_info
    return found | {f"next.{key}": value for key, value in batch.next_observation.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("replay") / "dataset"
    steps = [*episode(70, 1), *episode(3, 2, truncated=True), *episode(2, 3)[:1]]
    write_dataset(buffer_of(steps, own_next=True), root, fps=10)
    return root


def test_a_buffer_becomes_a_dataset_with_lerobots_columns(written: Path) -> None:
    dataset = reader.open(written)

    assert dataset.episodes.length.tolist() == [70, 3, 1]
    assert dataset.info.entry(FRONT)["dtype"] == "image"
    assert tuple(dataset.info.entry(FRONT)["shape"]) == (3, 6, 8)
    assert dataset.info.fps == 10
    assert dataset[0]["task"] == "from_replay_buffer"
    expected = {"action", "next.reward", "next.done", FRONT, STATE}
    expected |= {"complementary_info.discrete_penalty", "complementary_info.is_intervention"}
    assert expected < dataset.info.features.keys()


def test_a_dataset_gives_back_the_transitions(written: Path) -> None:
    steps = [*episode(70, 1), *episode(3, 2, truncated=True)]
    found = list(dataset_transitions(reader.open(written)))

    assert len(found) == 74
    for i in [*range(69), 70, 71]:  # LeRobot's datasets lack the observation after the last step
        assert_same(found[i], steps[i])
    for i in (69, 72):
        assert (found[i].done, found[i].truncated) == (steps[i].done, steps[i].truncated)
        np.testing.assert_array_equal(found[i].next_observation[STATE], steps[i].observation[STATE])


def test_an_overwritten_ring_is_written_oldest_first(tmp_path: Path) -> None:
    steps = [*episode(5, 1), *episode(6, 2)]
    write_dataset(buffer_of(steps, 8), tmp_path / "d", fps=10)
    write_dataset(buffer_of(steps, 8), tmp_path / "d", fps=10)  # replaces the first
    dataset = reader.open(tmp_path / "d")

    assert dataset.episodes.length.tolist() == [2, 6]
    rewards = dataset.batch(range(8), ["next.reward"])["next.reward"].ravel()
    assert rewards.tolist() == [step.reward for step in steps[3:]]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_buffer_is_filled_from_a_dataset_a_few_frames_at_a_time(written: Path) -> None:
    seen: list[tuple[int, int]] = []
    buffer = ReplayBuffer(ReplaySettings(100, shift_images=False))
    fill_from_dataset(buffer, reader.open(written), lambda done, n: seen.append((done, n)))
    direct = buffer_of([*episode(70, 1), *episode(3, 2, truncated=True)])

    assert seen[0] == (1, 74)
    assert seen[-1] == (74, 74)
    expected = all_rows(direct, 72)
    for key, value in all_rows(buffer, 72).items():
        assert torch.equal(value, expected[key]), key


def test_a_dataset_that_does_not_fit_is_refused(written: Path) -> None:
    with pytest.raises(UsageError) as caught:
        fill_from_dataset(ReplayBuffer(ReplaySettings(73)), reader.open(written))
    assert caught.value.code == "rl.buffer-too-small"


def test_a_dataset_without_the_policys_inputs_is_refused(written: Path) -> None:
    buffer = ReplayBuffer(ReplaySettings(100, keys=[STATE, "observation.environment_state"]))
    with pytest.raises(DatasetError) as caught:
        fill_from_dataset(buffer, reader.open(written))
    assert caught.value.code == "rl.dataset-lacks-key"


def test_demonstrations_without_rewards_count_as_successes(tmp_path: Path) -> None:
    features = {key: {"dtype": "float32", "shape": [2], "names": None} for key in (STATE, "action")}
    with DatasetWriter.create(tmp_path / "d", 10, features) as writer:
        for length in (3, 2):
            for _ in range(length):
                writer.add_frame({key: np.zeros(2, np.float32) for key in features}, "lift")
            writer.end_episode()
    dataset = reader.open(tmp_path / "d")
    found = list(dataset_transitions(dataset))

    assert rewards_are_assumed(dataset)
    assert [step.reward for step in found] == [0, 0, 1, 0, 1]
    assert [step.done for step in found] == [False, False, True, False, True]


def test_the_buffers_of_a_learner_become_lerobots_two_datasets(tmp_path: Path) -> None:
    storage = open_learner(tmp_path / "run", fill_offline=lambda _: None).storage
    storage.write_datasets(tmp_path, 10, "lift")  # both buffers are empty
    for number in range(20):
        step = ReceivedTransition("a", number + 1, transition(number, intervention=number < 3))
        storage.write([step])
        storage.admit(step)
    storage.write_datasets(tmp_path, 10, "lift")

    online, offline = (reader.open(tmp_path / name) for name in ("dataset", "dataset_offline"))
    assert (len(online), len(offline)) == (16, 3)  # the ring holds 16
    assert online[0]["task"] == "lift"
    assert online.batch([0], ["observation.state"])["observation.state"][0].tolist() == [4.0] * 3


def test_an_empty_buffer_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_dataset(ReplayBuffer(ReplaySettings(4)), tmp_path / "d", fps=10)
    assert caught.value.code == "rl.buffer-empty"
