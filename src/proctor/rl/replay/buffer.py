"""``ReplayBuffer``: a ring of transitions that samples batches, in LeRobot's semantics.

Each observation is stored once: the next observation of a row is the observation of the row after
it. LeRobot does the same, so a truncated step gets the first observation of the next episode, and
the newest step of a full ring gets the oldest one. ``own_next`` (the fix ``truncation``) stores the
next observation of such rows separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from proctor.errors import UsageError
from proctor.rl.replay.schema import PackedObservation, PackedTransition, TransitionSchema
from proctor.rl.replay.tables import MAPPED_ABOVE_BYTES, MappedTable, Table
from proctor.rl.transitions import Transition, TransitionBatch

PAD = 4
"""Largest shift in pixels, as in LeRobot and DrQ."""


@dataclass(frozen=True)
class Shifts:
    """Upper left corners of the crops in the padded images, int64 [N], each 0 to 2 * PAD."""

    top: torch.Tensor
    left: torch.Tensor

    @classmethod
    def draw(cls, n: int, generator: torch.Generator) -> Shifts:
        """Draw the shifts of ``n`` images: all rows first, then all columns, as LeRobot does."""
        top = torch.randint(0, 2 * PAD + 1, (n,), generator=generator)
        return cls(top, torch.randint(0, 2 * PAD + 1, (n,), generator=generator))


def shift_images(images: torch.Tensor, shifts: Shifts) -> torch.Tensor:
    """Return ``images`` [N, C, H, W] shifted; edge pixels repeat.

    This equals a replicate padding by ``PAD`` and a crop of each image at its corner.
    """
    is_small = min(images.shape[-2:]) <= PAD
    if images.device.type == "cpu" and not is_small:  # 8 times as fast as a gather there
        return _shift_by_copies(images, shifts)
    n, _, height, width = images.shape
    rows = _source(shifts.top.to(images.device, non_blocking=True), height)
    columns = _source(shifts.left.to(images.device, non_blocking=True), width)
    pick = torch.arange(n, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[pick, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _source(corner: torch.Tensor, size: int) -> torch.Tensor:
    """Return the source pixel of each output pixel along one axis, int64 [N, size]."""
    span = torch.arange(-PAD, size - PAD, device=corner.device)
    return (corner[:, None] + span).clamp_(0, size - 1)


def _shift_by_copies(images: torch.Tensor, shifts: Shifts) -> torch.Tensor:
    height, width = images.shape[-2:]
    shifted = torch.empty_like(images)
    corners = zip((shifts.top - PAD).tolist(), (shifts.left - PAD).tolist(), strict=True)
    for image, out, (down, right) in zip(images, shifted, corners, strict=True):
        top, bottom = max(0, -down), min(height, height - down)
        left, end = max(0, -right), min(width, width - right)
        inside = image[:, top + down : bottom + down, left + right : end + right]
        out[:, top:bottom, left:end] = inside
        out[:, :top] = out[:, top : top + 1]
        out[:, bottom:] = out[:, bottom - 1 : bottom]
        out[:, :, :left] = out[:, :, left : left + 1]
        out[:, :, end:] = out[:, :, end - 1 : end]
    return shifted


@dataclass(frozen=True)
class ReplaySettings:
    """How a buffer stores and samples."""

    capacity: int
    keys: Sequence[str] | None = None
    """Observation keys that are stored; None stores all keys of the first transition."""
    own_next: bool = False
    """Every sampled next observation is the transition's own (the fix ``truncation``)."""
    shift_images: bool = True
    """DrQ: shift the images of each sample at random."""
    image_dtype: str = "uint8"
    """uint8 keeps camera pixels exactly; float32 is LeRobot's storage, four times as large."""
    storage_device: str = "cpu"
    device: str = "cpu"
    """Device of the batches."""
    mapped_above_bytes: int = MAPPED_ABOVE_BYTES
    folder: Path | None = None
    """Folder of mapped files; None takes the system's temporary folder."""


@dataclass(frozen=True)
class SampleDraws:
    """The random numbers of one sample."""

    rows: torch.Tensor  # int64 [B]
    shifts: Shifts | None
    """For each image key: the observations' shifts, then those of the next observations."""


class ReplayBuffer:
    """A ring of transitions. One thread uses it at a time."""

    def __init__(self, settings: ReplaySettings) -> None:
        if settings.capacity < 1:
            raise UsageError(
                f"a replay buffer needs a capacity of at least 1, got {settings.capacity}",
                code="rl.buffer-capacity",
            )
        self.settings = settings
        self.schema: TransitionSchema | None = None
        self.total = 0
        """Transitions added so far, overwritten ones included."""
        self._tables = _Tables.empty()

    def __len__(self) -> int:
        return min(self.total, self.settings.capacity)

    @property
    def n_sampleable(self) -> int:
        """Rows that a sample draws from: in a ring that is not full, LeRobot omits the newest."""
        size = len(self)
        if self.settings.own_next or size == self.settings.capacity:
            return size
        return max(0, size - 1)

    def add(self, transition: Transition) -> None:
        """Store a transition; a full ring overwrites the oldest one."""
        settings = self.settings
        if self.schema is None:
            self.use_schema(TransitionSchema.of(transition, settings.keys, settings.image_dtype))
        assert self.schema is not None
        self.add_packed(self.schema.pack(transition))

    def use_schema(self, schema: TransitionSchema) -> None:
        """Fix keys and shapes, and make the tables."""
        self.schema = schema
        self._tables = _Tables.allocate(schema, self.settings)

    def add_packed(self, packed: PackedTransition) -> None:
        """Store a transition that is packed with this buffer's schema."""
        row = self.total % self.settings.capacity
        self._tables.write(row, packed)
        self.total += 1

    def draw(self, n: int, generator: torch.Generator) -> SampleDraws:
        """Draw the random numbers of a sample of ``min(n, len(self))`` transitions."""
        available = self.n_sampleable
        if available < 1 or self.schema is None:
            raise UsageError(
                f"the replay buffer has {len(self)} transitions, too few to sample",
                code="rl.buffer-empty",
            )
        n = min(n, len(self))
        rows = torch.randint(0, available, (n,), generator=generator)
        if not (self.settings.shift_images and self.schema.images):
            return SampleDraws(rows, None)
        return SampleDraws(rows, Shifts.draw(2 * n * len(self.schema.images), generator))

    def sample(self, n: int, generator: torch.Generator) -> TransitionBatch:
        """Return a random batch, drawn with replacement."""
        return self.gather(self.draw(n, generator))

    def gather(self, draws: SampleDraws) -> TransitionBatch:
        """Return the batch that ``draws`` chooses."""
        schema, device = self.schema, self.settings.device
        assert schema is not None
        rows = draws.rows.to(self.settings.storage_device, non_blocking=True)
        now = self._tables.numbers.rows.index_select(0, rows).to(device)
        after = self._tables.next_numbers(rows).to(device)
        images, next_images = self._gather_images(rows, draws.shifts)
        start = schema.observation_width
        stop = start + prod(schema.action)
        return TransitionBatch(
            _split_numbers(schema, now) | images,
            now[:, start:stop].view(-1, *schema.action),
            now[:, stop],
            _split_numbers(schema, after) | next_images,
            now[:, stop + 1],
            now[:, stop + 2],
            {key: now[:, stop + 3 + i] for i, key in enumerate(schema.info)},
        )

    def _gather_images(
        self, rows: torch.Tensor, shifts: Shifts | None
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        images, next_images = {}, {}
        n = len(rows)
        for i, key in enumerate(self._tables.images):
            pair = self._tables.image_pairs(key, rows).to(self.settings.device)
            if shifts is not None:
                part = slice(2 * n * i, 2 * n * (i + 1))
                pair = shift_images(pair, Shifts(shifts.top[part], shifts.left[part]))
            if pair.dtype == torch.uint8:
                pair = pair.float().div_(255)
            images[key], next_images[key] = pair[:n], pair[n:]
        return images, next_images


class _Tables:
    """The rows of a ring, and the next observations that no row holds."""

    def __init__(
        self, numbers: Table, images: dict[str, Table], own: _OwnNext | None, width: int
    ) -> None:
        self.numbers, self.images, self._own = numbers, images, own
        self._observation_width = width

    @classmethod
    def empty(cls) -> _Tables:
        """Return tables without rows, for a buffer without a schema."""
        return cls(Table(0, (0,), "float32"), {}, None, 0)

    @classmethod
    def allocate(cls, schema: TransitionSchema, settings: ReplaySettings) -> _Tables:
        """Make the tables of a buffer."""
        n, width = settings.capacity, schema.observation_width
        numbers = Table(n, (schema.width,), "float32", settings.storage_device)
        images = _image_tables(schema, settings)
        own = None
        if settings.own_next:
            next_numbers = Table(n, (width,), "float32", settings.storage_device)
            own = _OwnNext(next_numbers, _image_tables(schema, settings))
        return cls(numbers, images, own, width)

    def write(self, row: int, packed: PackedTransition) -> None:
        """Write a transition into a row."""
        self.numbers.write(row, packed.row)
        for key, table in self.images.items():
            table.write(row, packed.images[key])
        if self._own is not None:
            width = self._observation_width
            self._own.write(row, PackedObservation(packed.row[:width], packed.images), packed)

    def next_numbers(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the next observations, float32 [B, S]."""
        following = self.numbers.rows[:, : self._observation_width].index_select(
            0, self._following(rows)
        )
        if self._own is None:
            return following
        return self._own.replace(rows, following, self._own.numbers)

    def image_pairs(self, key: str, rows: torch.Tensor) -> torch.Tensor:
        """Return the images of the observations and then of the next ones, [2 * B, C, H, W]."""
        table = self.images[key].rows
        pair = table.index_select(0, torch.cat([rows, self._following(rows)]))
        if self._own is not None:
            pair[len(rows) :] = self._own.replace(rows, pair[len(rows) :], self._own.images[key])
        return pair

    def _following(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows + 1) % len(self.numbers.rows)


class _OwnNext:
    """Next observations of rows whose following row is not the same episode's next step.

    A slot holds one of them. The newest row always has one; it is freed when the next transition
    begins where the newest one ended.
    """

    def __init__(self, numbers: Table, images: dict[str, Table]) -> None:
        self.numbers, self.images = numbers, images
        n = len(numbers.rows)
        self._slots = [-1] * n
        """The slot of each row, or -1."""
        self._slot_of = torch.tensor(self._slots, device=numbers.rows.device)
        """The same for sampling; a GPU's copy is never read back, which would wait for it."""
        self._free: list[int] = []
        self._n_slots = 0
        self._newest: tuple[int, PackedObservation] | None = None

    def write(self, row: int, observation: PackedObservation, packed: PackedTransition) -> None:
        """Keep the next observation of ``row``."""
        self._release(row)  # the transition that this row held is gone
        if self._newest is not None:
            newest, expected = self._newest
            is_following = newest != row and (newest + 1) % len(self._slots) == row
            if is_following and expected.equals(observation):
                self._release(newest)
        slot = self._new_slot()
        self.numbers.write(slot, packed.next.numbers)
        for key, table in self.images.items():
            table.write(slot, packed.next.images[key])
        self._slots[row] = slot
        self._slot_of[row] = slot
        self._newest = row, packed.next

    def replace(self, rows: torch.Tensor, following: torch.Tensor, own: Table) -> torch.Tensor:
        """Return ``following`` with the own next observation of the rows that have one."""
        slots = self._slot_of[rows]
        has_own = slots >= 0
        shape = (-1,) + (1,) * (following.dim() - 1)
        return torch.where(
            has_own.view(shape), own.rows.index_select(0, slots.clamp(min=0)), following
        )

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._n_slots += 1
        return self._n_slots - 1

    def _release(self, row: int) -> None:
        slot = self._slots[row]
        if slot >= 0:
            self._free.append(slot)
            self._slots[row] = self._slot_of[row] = -1


def _image_tables(schema: TransitionSchema, settings: ReplaySettings) -> dict[str, Table]:
    n, device = settings.capacity, settings.storage_device
    is_large = n * schema.image_bytes > settings.mapped_above_bytes
    if is_large and device == "cpu":
        return {
            key: MappedTable(n, shape, schema.image_dtype, settings.folder)
            for key, shape in schema.images.items()
        }
    return {
        key: Table(n, shape, schema.image_dtype, device) for key, shape in schema.images.items()
    }


def _split_numbers(schema: TransitionSchema, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return views of the observation's numbers by key."""
    found = {}
    start = 0
    for key, shape in schema.numbers.items():
        stop = start + prod(shape)
        found[key] = rows[:, start:stop].view(-1, *shape)
        start = stop
    return found
