"""Training samples in the memory of the training device (--dataset.cache=device).

The device holds, for every frame of the chosen episodes:

    features       uint8 images, only the region that the network reads; all else as float32
    text           the index of its instruction among the encoded rows of all wordings
    first, last    the positions of its episode's first and last frame

A batch is gathered there from the positions of its samples. Windows, padding masks and instructions
have the same bits as those of loader processes (data.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from proctor.datasets.cache_settings import GB
from proctor.errors import DatasetError, UsageError
from proctor.features import Array
from proctor.policies.runtime.network import ImageRegion
from proctor.system.platform.platform_info import usable_memory_bytes
from proctor.training.data.loading import IS_PAD, Batch, TrainingSamples, to_tensor
from proctor.training.data.sampler import BatchOrder

if TYPE_CHECKING:
    from proctor.datasets.reading.dataset import Dataset

_NETWORK_SHARE = 0.2
"""Share of a GPU's memory that is kept for weights, gradients, optimiser and activations."""


@dataclass(frozen=True)
class _Feature:
    """One feature of a sample, and how it lies on the device."""

    key: str
    offsets: Array | None
    """Frame offsets of its time window, int64 [T]; None: it has no time axis."""
    frame_shape: tuple[int, ...]
    region: ImageRegion | None
    dtype: torch.dtype

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one frame on the device."""
        return self.frame_shape if self.region is None else (*self.region[2:], self.frame_shape[2])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape in one sample, with the time axis first."""
        return (
            self.stored_shape if self.offsets is None else (len(self.offsets), *self.stored_shape)
        )

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame on the device."""
        return int(np.prod(self.stored_shape)) * self.dtype.itemsize


@dataclass(frozen=True)
class _DeviceFrames:
    """All frames on the device; every tensor's first axis is the position of the frame."""

    features: Sequence[_Feature]
    offsets: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]
    """The values of each feature, [N, words of a frame]."""
    first: Tensor
    last: Tensor
    text: Tensor
    instructions: Mapping[str, Tensor]
    """Encoded instructions, one row for each distinct text."""

    def batch(self, positions: Tensor) -> Batch:
        """Return the samples at ``positions``, int64 [B] on the device."""
        first, last = (ends.index_select(0, positions)[:, None] for ends in (self.first, self.last))
        batch, masks = {}, {}
        for feature in self.features:
            key, at = feature.key, positions
            if key in self.offsets:
                wanted = positions[:, None] + self.offsets[key]
                inside = wanted.clamp(first, last)
                at, masks[key + IS_PAD] = inside.flatten(), wanted != inside
            found = self.rows[key].index_select(0, at).view(feature.dtype)
            batch[key] = found.reshape(len(positions), *feature.sample_shape)
        batch |= masks
        if self.instructions:
            text = self.text.index_select(0, positions)
            batch |= {key: rows.index_select(0, text) for key, rows in self.instructions.items()}
        return batch


class DeviceSamples:
    """The samples of a dataset on a device; no loader process makes batches of them."""

    def __init__(self, samples: TrainingSamples, device: torch.device) -> None:
        """Plan the samples of a dataset whose frame cache is in memory; nothing is read yet."""
        needs = samples.instruction_encoder.needs
        if needs:
            raise UsageError(
                f"--dataset.cache=device: the prompts hold {', '.join(needs)}, so loader processes "
                "must encode them; choose --dataset.cache=ram",
                code="flag.conflict",
            )
        dataset = _dataset(samples)
        self.dataset_name, self._device = dataset.name, device
        self._features = [_feature(samples, dataset, key) for key in samples.shapes]
        self._host: TrainingSamples | None = samples
        """The samples in the memory of this process; None once they are on the device."""
        self._frames: _DeviceFrames | None = None
        self.nbytes = len(dataset) * sum(feature.frame_bytes for feature in self._features)
        """Bytes on the device."""
        self.decoded_nbytes = len(dataset) * sum(
            int(np.prod(camera.shape)) * np.dtype(camera.pixels.dtype).itemsize
            for key, camera in dataset.cameras.items()
            if key in samples.shapes
        )
        """Bytes that the decoded images take in this process, until they are on the device."""

    def fill_cache(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Decode the images, copy all features to the device, and free the decoded images."""
        host, device = self._host, self._device
        if host is None:
            return
        dataset = _dataset(host)
        rows = {
            feature.key: self._load_images(dataset, feature, on_progress)
            if feature.key in dataset.cameras
            else to_tensor(dataset.column(feature.key), feature.stored_shape).to(device)
            for feature in self._features
        }
        first, last = (np.repeat(ends, np.diff(dataset.spans)[:, 0]) for ends in dataset.spans.T)
        text, instructions = _encode_instructions(host, dataset)
        self._frames = _DeviceFrames(
            self._features,
            {f.key: _send(f.offsets, device) for f in self._features if f.offsets is not None},
            {key: _as_words(values) for key, values in rows.items()},
            _send(first, device),
            _send(last - 1, device),
            _send(text, device),
            {key: _send(values, device) for key, values in instructions.items()},
        )
        self._host = None
        dataset.close_cache()

    def _load_images(
        self, dataset: Dataset, feature: _Feature, on_progress: Callable[[str, int, int], None]
    ) -> Tensor:
        """Return a camera's images on the device; episodes are copied while others are decoded."""
        key, spans = feature.key, dataset.spans.tolist()
        images = torch.empty(
            (len(dataset), *feature.stored_shape), dtype=feature.dtype, device=self._device
        )
        left = list(range(len(spans)))

        def copy_decoded() -> None:
            for episode in tuple(left):
                decoded = dataset.cached_images(key, episode)
                if decoded is None:
                    continue
                if feature.region is not None:
                    top, wide, height, width = feature.region
                    decoded = decoded[:, top : top + height, wide : wide + width]
                start, stop = spans[episode]
                images[start:stop].copy_(to_tensor(decoded, feature.stored_shape))
                left.remove(episode)

        def on_decoded(camera: str, frames: int, total: int) -> None:
            on_progress(camera, frames, total)
            copy_decoded()

        dataset.fill_cache(on_decoded, [key])
        copy_decoded()
        return images

    def repeated(self, position: int, rows: int) -> Batch:
        """Return a batch of ``rows`` times the same sample."""
        host = self._host
        if host is not None:  # frames are still decoded
            return host.repeated(position, rows)
        assert self._frames is not None
        return self._frames.batch(torch.full((rows,), position, device=self._device))

    def batches(self, order: BatchOrder, steps: range) -> Generator[Batch, None, None]:
        """Yield the batches of ``steps``, on the device, in the order of the steps.

        Kernels are launched on the current stream, while it computes the step before.
        """
        if not steps:
            return
        self.fill_cache(lambda *_: None)  # a training without steps may validate
        assert self._frames is not None
        for positions in order.batches(steps.start, steps.stop):
            yield self._frames.batch(_send(positions, self._device))

    def close(self) -> None:
        """Free the memory."""
        self._host = self._frames = None


Samples = TrainingSamples | DeviceSamples


def place_on_device(
    samples: Sequence[TrainingSamples], device: torch.device
) -> list[DeviceSamples]:
    """Return samples that will be on the device, after checking that all fit into its memory."""
    placed = [DeviceSamples(some, device) for some in samples]
    _check_memory(placed, device)
    return placed


def _check_memory(samples: Sequence[DeviceSamples], device: torch.device) -> None:
    needed = sum(some.nbytes for some in samples)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        kept = int(_NETWORK_SHARE * total)
        why = f"{free / GB:.1f} GB are free, of which {kept / GB:.1f} GB are for the network"
    else:
        free, kept = usable_memory_bytes(), sum(some.decoded_nbytes for some in samples)
        why = f"of {free / GB:.1f} GB, {kept / GB:.1f} GB are needed for decoding"
    if needed > free - kept:
        raise DatasetError(
            f"the frames of {samples[0].dataset_name} need {needed / GB:.1f} GB on the device "
            f"{device}, and {max(0, free - kept) / GB:.1f} GB are left ({why}): use fewer episodes "
            "or smaller images, or --dataset.cache=ram",
            code="cache.too-small",
        )


def _dataset(samples: TrainingSamples) -> Dataset:
    return cast("Dataset", samples.dataset)  # a stream has no cache


def _feature(samples: TrainingSamples, dataset: Dataset, key: str) -> _Feature:
    offsets, shape, camera = dataset.offsets.get(key), samples.shapes[key], dataset.cameras.get(key)
    is_colour = camera is not None and camera.pixels.dtype == "uint8"
    return _Feature(
        key,
        offsets,
        shape if offsets is None else shape[1:],
        samples.regions.get(key),
        torch.uint8 if is_colour else torch.float32,
    )


def _encode_instructions(
    samples: TrainingSamples, dataset: Dataset
) -> tuple[Array, dict[str, Array]]:
    """Return the text index of every frame, and the encoded rows of each distinct text."""
    positions, encode = np.arange(len(dataset)), samples.instruction_encoder
    tasks = dataset.batch(positions, [])["task"]
    if not encode(tasks[:1], {}):
        return np.zeros(len(positions), np.int64), {}
    texts = samples.words(positions.tolist(), tasks)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] for text in texts], np.int64), encode(list(numbers), {})


def _send(values: Array, device: torch.device) -> Tensor:
    """Copy a small array to the device, without waiting for a GPU."""
    sent = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        sent = sent.pin_memory()
    return sent.to(device, non_blocking=True)


def _as_words(values: Tensor) -> Tensor:
    """Return frames as rows of 8-byte words if they divide, since a GPU gathers bytes slowly."""
    rows = values.reshape(len(values), -1)
    return rows.view(torch.int64) if rows.shape[1] * rows.itemsize % 8 == 0 else rows
