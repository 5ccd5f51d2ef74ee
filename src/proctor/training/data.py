"""Batches on their way: read by loader processes, pinned, copied while the device computes."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from proctor.errors import ProctorError, TrainingError, summarize_traceback
from proctor.policies.runtime.instruction_encoder import InstructionEncoder
from proctor.training.sampler import BatchOrder

if TYPE_CHECKING:
    from proctor.datasets.reading.dataset import Dataset
    from proctor.datasets.stream import Stream

IS_PAD = "_is_pad"
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class LoaderSettings:
    """How batches are read."""

    processes: int
    prefetch_factor: int
    """Batches that each process is ahead."""
    start_method: str


class TrainingSamples(torch.utils.data.Dataset[Batch]):
    """A dataset as the loader's processes see it: what a network needs, as tensors."""

    def __init__(
        self,
        dataset: Dataset | Stream,
        shapes: Mapping[str, tuple[int, ...]],
        instruction_encoder: InstructionEncoder,
    ) -> None:
        self._dataset = dataset
        self._instruction_encoder = instruction_encoder
        self._shapes = dict(shapes)
        """Of each feature in one sample, its axis of time first."""

    def fill_cache(self, told: Callable[[str, int, int], None]) -> None:
        """Decode what a cache is to keep of the cameras that are looked at."""
        from proctor.datasets.reading.dataset import Dataset

        if isinstance(self._dataset, Dataset):  # of a stream nothing stays
            self._dataset.fill_cache(told, list(self._shapes))

    def close(self) -> None:
        """Let go of what was fetched for a while."""
        from proctor.datasets.stream import Stream

        if isinstance(self._dataset, Stream):
            self._dataset.close()

    def __getitems__(self, positions: Sequence[int]) -> Batch | ProctorError:
        """Return a batch; what is wrong with the dataset comes back as an error, not as a trace."""
        try:
            found = self._dataset.batch(positions, list(self._shapes))
        except ProctorError as error:
            return error
        batch = {key: _tensor(found[key], shape) for key, shape in self._shapes.items()}
        masks = [key for key in found if key.endswith(IS_PAD)]
        batch |= {key: torch.from_numpy(found[key]) for key in masks}
        seen = {key: batch[key] for key in self._instruction_encoder.needs}
        try:
            told = self._instruction_encoder([str(task) for task in found["task"]], seen)
        except ProctorError as error:
            return error
        return _handed_over(batch | {key: torch.from_numpy(rows) for key, rows in told.items()})


def _handed_over(batch: Batch) -> Batch | ProctorError:
    """Return a batch in shared memory, where a loader process read it: torch would put it there.

    It would in a thread, which prints why it could not and leaves the training to wait for ever.
    """
    if torch.utils.data.get_worker_info() is None:
        return batch
    try:
        for value in batch.values():
            if value.numel():  # there is no memory of no bytes
                value.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return _without_room(error)
    return batch


def _tensor(values: Any, shape: tuple[int, ...]) -> Tensor:
    """Return rows of ``shape``: pictures as uint8, everything else as float32."""
    array = np.asarray(values)
    is_picture = array.dtype == np.uint8 and array.ndim > 3  # [B, (T,) H, W, C]
    if not is_picture:
        array = array.astype(np.float32, copy=False)
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(len(array), *shape)


def batches(
    samples: TrainingSamples,
    order: BatchOrder,
    steps: range,
    loading: LoaderSettings,
    device: torch.device,
) -> Iterator[Batch]:
    """Yield the batches of ``steps``, on ``device``, in the order of the steps.

    Raises:
        UsageError: the dataset cannot be read.
        TrainingError: a loader process is gone.
    """
    if not steps:  # then no processes are started for it
        return
    with warnings.catch_warnings():
        # Waiting is measured and shown; torch only counts cores.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        try:
            loaded = iter(_loader(samples, order, steps, loading, device))
        except (OSError, RuntimeError) as error:
            raise _without_room(error) from error
    copier = _Copier(device) if device.type == "cuda" else None
    for found in _checked(loaded):
        yield found if copier is None else copier(found)


def _loader(
    samples: TrainingSamples,
    order: BatchOrder,
    steps: range,
    loading: LoaderSettings,
    device: torch.device,
) -> DataLoader[Any]:
    return DataLoader(
        samples,
        batch_sampler=order.batches(steps.start, steps.stop),  # type: ignore[arg-type]
        num_workers=loading.processes,
        prefetch_factor=loading.prefetch_factor if loading.processes else None,
        multiprocessing_context=loading.start_method if loading.processes else None,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # its processes draw nothing, and nothing is drawn for them
    )


def _without_room(error: Exception) -> TrainingError:
    """Say why loader processes could not be started, or could not hand a batch over."""
    if os.strerror(errno.ENOSPC) not in str(error):
        return TrainingError(
            f"loader processes do not work: {summarize_traceback(str(error))}",
            code="training.loader-failed",
        )
    return TrainingError(
        "no space left in /dev/shm, where loader processes hand batches over: give it more "
        "(docker run --shm-size=8g), take a smaller --batch_size or --prefetch_factor, or "
        "--num_workers=0; what was saved is whole, and --resume goes on from it",
        code="disk.shared-memory-full",
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _checked(loader: Iterator[Any]) -> Iterator[Batch]:
    while True:
        try:
            found = next(loader)
        except StopIteration:
            return
        except RuntimeError as error:  # torch's word for a process that was killed
            raise TrainingError(
                f"a loader process is gone: {summarize_traceback(str(error))}",
                code="training.loader-died",
            ) from error
        if isinstance(found, ProctorError):
            raise found
        yield found


class _Copier:
    """Copies batches to a GPU beside its computing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Batch:
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = {key: value.to(self._device, non_blocking=True) for key, value in batch.items()}
        computing.wait_stream(self._stream)
        for value in moved.values():
            value.record_stream(computing)
        return moved
