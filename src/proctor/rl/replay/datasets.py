"""Replay buffers from LeRobot datasets, and datasets from replay buffers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError, UsageError
from proctor.features import ACTION, REWARD, SUCCESS, Array
from proctor.rl.replay.buffer import ReplayBuffer, SampleDraws
from proctor.rl.replay.schema import TransitionSchema, is_image
from proctor.rl.transitions import Transition, TransitionBatch
from proctor.system.files import swap

if TYPE_CHECKING:
    from proctor.datasets.reading.dataset import Dataset

DONE = "next.done"
TRUNCATED = "next.truncated"
"""Proctor's own column, which LeRobot ignores: its datasets do not keep truncation."""
INFO = "complementary_info."
DEFAULT_TASK = "from_replay_buffer"
_CHUNK = 64
"""Frames that are decoded at a time."""

OnProgress = Callable[[int, int], None]
"""Called with the number of frames that are done, and the number of all."""


def rewards_are_assumed(dataset: Dataset) -> bool:
    """Whether a dataset has neither rewards nor successes.

    Then each episode counts as a successful demonstration: reward 1 at its last frame.
    """
    return not {REWARD, SUCCESS} & dataset.info.features.keys()


def fill_from_dataset(
    buffer: ReplayBuffer, dataset: Dataset, on_progress: OnProgress | None = None
) -> None:
    """Add all frames of a dataset, as LeRobot does; a few frames are decoded at a time.

    A frame is done where ``next.done`` says so, or at the end of its episode. The next observation
    of a done frame is its own observation. Columns ``complementary_info.*`` are kept.
    """
    n, capacity = len(dataset), buffer.settings.capacity
    if n > capacity:
        raise UsageError(
            f"{dataset.name} has {n:,} frames, and the offline buffer holds {capacity:,}; set "
            f"--policy.offline_buffer_capacity={n} or choose episodes with --dataset.episodes",
            code="rl.buffer-too-small",
        )
    for i, transition in enumerate(dataset_transitions(dataset, buffer.settings.keys)):
        buffer.add(transition)
        if on_progress is not None:
            on_progress(i + 1, n)


def dataset_transitions(
    dataset: Dataset, keys: Sequence[str] | None = None
) -> Iterator[Transition]:
    """Yield the frames of a dataset as transitions."""
    columns = _Columns.of(dataset, keys)
    for first, last in dataset.spans.tolist():
        after: Transition | None = None
        for start in range(first, last, _CHUNK):
            stop = min(start + _CHUNK, last)
            frames = columns.read(dataset, start, stop)
            frames.ends[-1] |= stop == last
            for i in range(stop - start):
                now = frames.transition(i)
                if after is not None:
                    yield _followed(after, now)
                after = now
        if after is not None:
            yield after


@dataclass(frozen=True)
class _Columns:
    """The columns of a dataset that transitions need."""

    observation: tuple[str, ...]
    info: tuple[str, ...]
    reward: str | None
    has_done: bool
    has_truncated: bool

    @classmethod
    def of(cls, dataset: Dataset, keys: Sequence[str] | None) -> _Columns:
        features = dataset.info.features
        observation = tuple(
            (key for key in features if key.startswith("observation.")) if keys is None else keys
        )
        for key in (*observation, ACTION):
            if key not in features:
                raise DatasetError(
                    f"{dataset.name} has no {key}, which the policy needs (it has "
                    f"{', '.join(features)})",
                    code="rl.dataset-lacks-key",
                )
        return cls(
            observation,
            tuple(key for key in features if key.startswith(INFO)),
            next((key for key in (REWARD, SUCCESS) if key in features), None),
            DONE in features,
            TRUNCATED in features,
        )

    def read(self, dataset: Dataset, start: int, stop: int) -> _Frames:
        """Read the frames ``start`` to ``stop`` of one episode."""
        wanted = [*self.observation, ACTION, *self.info]
        wanted += [self.reward] if self.reward else []
        wanted += [DONE] * self.has_done + [TRUNCATED] * self.has_truncated
        batch = dataset.batch(np.arange(start, stop), wanted)
        n = stop - start
        empty = np.zeros(n, bool)
        return _Frames(
            {key: _channels_first(key, batch[key]) for key in self.observation},
            batch[ACTION].astype(np.float32).reshape(n, -1),
            batch[self.reward].astype(np.float32).reshape(n) if self.reward else None,
            batch[DONE].astype(bool).reshape(n) if self.has_done else empty.copy(),
            batch[TRUNCATED].astype(bool).reshape(n) if self.has_truncated else empty.copy(),
            {key.removeprefix(INFO): batch[key].reshape(n, -1)[:, 0] for key in self.info},
            empty.copy(),
            self.has_done,
        )


@dataclass
class _Frames:
    """Consecutive frames of one episode."""

    observation: dict[str, Array]
    action: Array
    reward: Array | None
    done: Array
    truncated: Array
    info: dict[str, Array]
    ends: Array
    """Whether a frame is the last of its episode."""
    has_done: bool

    def transition(self, i: int) -> Transition:
        """Return frame ``i``, whose next observation is its own until it is followed."""
        is_last, truncated = bool(self.ends[i]), bool(self.truncated[i])
        observation = {key: values[i] for key, values in self.observation.items()}
        return Transition(
            observation,
            self.action[i],
            float(is_last if self.reward is None else self.reward[i]),
            observation,
            done=bool(self.done[i]) if self.has_done else is_last and not truncated,
            truncated=truncated,
            complementary_info={key: float(values[i]) for key, values in self.info.items()},
        )


def _followed(one: Transition, after: Transition) -> Transition:
    """Return ``one`` with the observation of the frame after it as its next observation."""
    if one.done:
        return one
    return Transition(
        one.observation,
        one.action,
        one.reward,
        after.observation,
        one.done,
        one.truncated,
        one.complementary_info,
    )


def _channels_first(key: str, values: Array) -> Array:
    """Return images [B, H, W, C] as [B, C, H, W], and other values unchanged."""
    return values.transpose(0, 3, 1, 2) if is_image(key) else values


def write_dataset(
    buffer: ReplayBuffer,
    root: Path,
    fps: int,
    task: str = DEFAULT_TASK,
    on_progress: OnProgress | None = None,
) -> None:
    """Write the transitions of a buffer as a dataset in LeRobot's layout, oldest first.

    An episode ends where a step is done or truncated. A dataset in ``root`` is replaced in one
    step when the new one is complete.
    """
    schema = buffer.schema
    if schema is None or not len(buffer):
        raise UsageError("the replay buffer is empty", code="rl.buffer-empty")
    part = root.with_name(f".{root.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    keeps_truncation = buffer.settings.own_next
    features = _features(schema, keeps_truncation)
    try:
        with DatasetWriter.create(part, fps, features) as writer:
            for i, (frame, ends) in enumerate(_frames(buffer, features)):
                writer.add_frame(frame, task)
                if ends or i + 1 == len(buffer):
                    writer.end_episode()
                if on_progress is not None:
                    on_progress(i + 1, len(buffer))
        _put(part, root)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put(part: Path, root: Path) -> None:
    if root.exists():
        swap(root, part)
    else:
        part.rename(root)


def _features(schema: TransitionSchema, keeps_truncation: bool) -> dict[str, dict[str, Any]]:
    features: dict[str, dict[str, Any]] = {
        ACTION: {"dtype": "float32", "shape": list(schema.action), "names": None},
        REWARD: {"dtype": "float32", "shape": [1], "names": None},
        DONE: {"dtype": "bool", "shape": [1], "names": None},
    }
    if keeps_truncation:
        features[TRUNCATED] = {"dtype": "bool", "shape": [1], "names": None}
    for key, shape in schema.images.items():
        names = ["channels", "height", "width"]
        features[key] = {"dtype": "image", "shape": list(shape), "names": names}
    for key, shape in schema.numbers.items():
        features[key] = {"dtype": "float32", "shape": list(shape), "names": None}
    for key in schema.info:
        features[INFO + key] = {"dtype": "float32", "shape": [1], "names": None}
    return features


def _frames(
    buffer: ReplayBuffer, features: dict[str, dict[str, Any]]
) -> Iterator[tuple[dict[str, Array], bool]]:
    """Yield each transition as a dataset's frame, and whether it ends its episode."""
    n, capacity = len(buffer), buffer.settings.capacity
    for start in range(0, n, _CHUNK):
        index = torch.arange(start, min(start + _CHUNK, n))
        rows = (buffer.total - n + index) % capacity
        columns = _as_columns(buffer.gather(SampleDraws(rows, None)))
        ends = columns[DONE] | columns[TRUNCATED]
        for i in range(len(rows)):
            yield {key: columns[key][i] for key in features}, bool(ends[i])


def _as_columns(batch: TransitionBatch) -> dict[str, Array]:
    columns = {
        ACTION: batch.action,
        REWARD: batch.reward[:, None],
        DONE: batch.done[:, None] > 0,
        TRUNCATED: batch.truncated[:, None] > 0,
    }
    columns |= {INFO + key: value[:, None] for key, value in batch.complementary_info.items()}
    for key, value in batch.observation.items():
        columns[key] = value
        if is_image(key):
            pixels = (value * 255).round().clamp(0, 255).to(torch.uint8)
            columns[key] = pixels.permute(0, 2, 3, 1)
    return {key: value.cpu().numpy() for key, value in columns.items()}
