"""Loads batches: worker processes, pinned memory, and copies that overlap with computing."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from proctor.errors import ProctorError, TrainingError, summarize_traceback
from proctor.policies.runtime.network import ImageRegion
from proctor.policies.runtime.prompts import InstructionEncoder
from proctor.training.data.sampler import BatchOrder
from proctor.training.data.wordings import TaskWordings

if TYPE_CHECKING:
    from proctor.datasets.reading.dataset import Dataset
    from proctor.datasets.stream import Stream

IS_PAD = "_is_pad"
_TERMINATION_DELAY_S = 30
Batch = dict[str, Tensor]


def n_rows(batch: Batch) -> int:
    """Return the number of samples in a batch."""
    return len(next(iter(batch.values())))


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of the data loader."""

    processes: int
    prefetch_factor: int
    """Batches that each process prefetches."""
    start_method: str


class TrainingSamples(torch.utils.data.Dataset[Batch]):
    """A dataset for the data loader: the network's inputs as tensors."""

    def __init__(
        self,
        dataset: Dataset | Stream,
        shapes: Mapping[str, tuple[int, ...]],
        instruction_encoder: InstructionEncoder,
        wordings: TaskWordings | None = None,
        regions: Mapping[str, ImageRegion] | None = None,
    ) -> None:
        self.dataset = dataset
        self._wordings = wordings
        self.regions = dict(regions or {})
        """The part of a camera's images that is read; whole images of the others."""
        self.instruction_encoder = instruction_encoder
        self.shapes = dict(shapes)
        """Shape of each feature in one sample, with the time axis first."""

    def fill_cache(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Decode the frames of the policy's cameras into the cache."""
        from proctor.datasets.reading.dataset import Dataset

        if isinstance(self.dataset, Dataset):  # a stream has no cache
            self.dataset.fill_cache(on_progress, list(self.shapes))

    def close(self) -> None:
        """Remove the temporary files of a stream."""
        from proctor.datasets.stream import Stream

        if isinstance(self.dataset, Stream):
            self.dataset.close()

    def __getitems__(self, positions: Sequence[int]) -> Batch | ProctorError:
        """Return a batch, or the error of a faulty dataset, without a worker's traceback."""
        try:
            found = self.dataset.batch(positions, list(self.shapes))
        except ProctorError as error:
            return error
        batch = {key: to_tensor(found[key], shape) for key, shape in self.shapes.items()}
        for key, (top, left, height, width) in self.regions.items():
            region = batch[key][..., top : top + height, left : left + width, :]
            batch[key] = region.contiguous()
        masks = [key for key in found if key.endswith(IS_PAD)]
        batch |= {key: torch.from_numpy(found[key]) for key in masks}
        needed = {key: batch[key] for key in self.instruction_encoder.needs}
        try:
            encoded = self.instruction_encoder(self.words(positions, found["task"]), needed)
        except ProctorError as error:
            return error
        return _in_shared_memory(
            batch | {key: torch.from_numpy(rows) for key, rows in encoded.items()}
        )

    def repeated(self, position: int, rows: int) -> Batch:
        """Return a batch of ``rows`` times the same sample."""
        found = self.__getitems__([position])
        if isinstance(found, ProctorError):
            raise found
        return {key: torch.cat([value] * rows) for key, value in found.items()}

    def words(self, positions: Sequence[int], tasks: Sequence[Any]) -> list[str]:
        """Return the instruction of every sample, in its drawn wording."""
        words = [str(task) for task in tasks]
        if self._wordings is None:
            return words
        return [self._wordings.draw(*sample) for sample in zip(words, positions, strict=True)]


def _in_shared_memory(batch: Batch) -> Batch | ProctorError:
    """Move a batch of a loader process to shared memory.

    Torch would do this in a thread. If it fails there, the thread prints the error and the training
    waits forever.
    """
    if torch.utils.data.get_worker_info() is None:
        return batch
    try:
        for value in batch.values():
            if value.numel():  # empty tensors have no memory
                value.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return _loader_error(error)
    return batch


def to_tensor(values: Any, shape: tuple[int, ...]) -> Tensor:
    """Return rows of ``shape``: images as uint8, everything else as float32."""
    array = np.asarray(values)
    is_image = array.dtype == np.uint8 and array.ndim > 3  # [B, (T,) H, W, C]
    if not is_image:
        array = array.astype(np.float32, copy=False)
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(len(array), *shape)


def start_fork_server() -> None:
    """Start the process that loader processes of start method "forkserver" are forked from.

    It imports torch once for all of them, while this process prepares the training.
    """
    multiprocessing.set_forkserver_preload([__name__, "proctor.datasets.reading.dataset"])
    with _keyboard_signals_blocked():
        multiprocessing.forkserver.ensure_running()


def batches(
    samples: TrainingSamples,
    order: BatchOrder,
    steps: range,
    loading: LoaderSettings,
    device: torch.device,
) -> Generator[Batch, None, None]:
    """Yield the batches of ``steps``, on ``device``, in the order of the steps."""
    if not steps:  # start no processes
        return
    with warnings.catch_warnings():
        # The metrics show the waiting time; torch's warning only compares core counts.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        try:
            with _keyboard_signals_blocked(), _own_child_handler():
                loaded = iter(_loader(samples, order, steps, loading, device))
        except (OSError, RuntimeError) as error:
            raise _loader_error(error) from error
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
        worker_init_fn=_outlive_signals if loading.processes else None,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # keeps the default generator untouched
    )


@contextmanager
def _keyboard_signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGHUP, which processes that are started in the block keep blocked.

    A terminal sends them to all processes of a training. The training process decides when its
    loader processes end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _own_child_handler() -> Iterator[None]:
    """Undo torch's handler of SIGCHLD.

    If a loader process dies, that handler raises in the middle of a step, whose weights are then
    half updated. Without it, the next wait for a batch notices the death, between two steps.
    """
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and before is not None:  # torch sets it there only
            signal.signal(signal.SIGCHLD, before)


def _outlive_signals(worker: int) -> None:
    """Let a loader process outlive SIGTERM by some seconds, for the training to finish its step.

    torchrun and job schedulers send SIGTERM to all processes of a training. A training that stops
    may close its connection to this process at any time: that is not worth a traceback.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_TERMINATION_DELAY_S))
    sys.excepthook = _print_unless_disconnected
    threading.Thread(target=_exit_with_training, daemon=True).start()


def _exit_with_training() -> None:
    """End this process with the training: torch watches the parent, which is the fork server."""
    training = multiprocessing.parent_process()
    if training is not None:
        training.join()
        os._exit(1)


def _print_unless_disconnected(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    if not isinstance(error, EOFError | ConnectionError):
        sys.__excepthook__(kind, error, where)


def _loader_error(error: Exception) -> TrainingError:
    """Return the error for loader processes that cannot start or cannot share a batch."""
    if os.strerror(errno.ENOSPC) not in str(error):
        return TrainingError(
            f"the loader processes failed: {summarize_traceback(str(error))}",
            code="training.loader-failed",
        )
    return TrainingError(
        "no space left in /dev/shm, which loader processes use to share batches; enlarge it "
        "(docker run --shm-size=8g), reduce --batch_size or --prefetch_factor, or set "
        "--num_workers=0",
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
        except RuntimeError as error:  # raised by torch if a process was killed
            raise TrainingError(
                f"a loader process died: {summarize_traceback(str(error))} (if memory is short, "
                "lower --num_workers or --prefetch_factor)",
                code="training.loader-died",
            ) from error
        if isinstance(found, ProctorError):
            raise found
        yield found


class _Copier:
    """Copies batches to a GPU on a second stream."""

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
