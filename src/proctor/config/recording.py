"""Config of ``proctor record``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from proctor.callbacks.action_labels import ActionLabel
from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.config.base import RECORDED_SEED, RunConfig
from proctor.datasets.frames.encoder import CODECS
from proctor.datasets.source import lerobot_home
from proctor.errors import UsageError
from proctor.features import REWARD, SUCCESS
from proctor.fingerprint import PRESENTATION
from proctor.settings import setting
from proctor.system.hub.repositories import HUB_ID
from proctor.types import MAX_EPISODES

EXTRAS = ("environment_state", REWARD, SUCCESS)
"""Choices of --record.extra, in the order in which they are written."""
_TRIES_PER_EPISODE = 4


class RecordedStarts(Enum):
    """Where demonstrations start if evaluations start from a published list of init states."""

    RANDOM = "random"
    """From scenes that the simulator places itself, by the episode's seed."""
    PUBLISHED = "published"
    """From the list: policies that are trained on the data have seen their evaluation's starts."""


@dataclass
class RecordedDataset:
    """Where a dataset is written, and its video codec."""

    help_group: ClassVar[str] = "Dataset"

    repo_id: str | None = setting(
        None, "Hub id of the dataset, as user/name (required without dataset.root)", PRESENTATION
    )
    root: Path | None = setting(
        None, "folder of the dataset (default: $HF_LEROBOT_HOME/REPO_ID)", PRESENTATION
    )
    codec: str = setting("av1", f"video codec: {', '.join(CODECS)}", choices=CODECS)

    def validate(self) -> None:
        """Refuse a dataset without a valid name."""
        if self.repo_id is None and self.root is None:
            raise UsageError(
                "no dataset to record to: give --dataset.repo_id=USER/NAME or --dataset.root=DIR",
                code="flag.missing",
            )
        if self.root is not None and not self.root.absolute().name:
            raise UsageError(
                f"--dataset.root: {self.root} cannot be a dataset", code="path.invalid"
            )
        if self.repo_id is not None and not HUB_ID.fullmatch(self.repo_id):
            raise UsageError(
                f"--dataset.repo_id must be USER/NAME, got {self.repo_id!r}",
                code="flag.invalid-value",
            )

    @property
    def folder(self) -> Path:
        """The folder of the dataset."""
        if self.root is not None:
            return self.root.absolute()
        assert self.repo_id is not None
        return lerobot_home() / self.repo_id


@dataclass
class RecordDatasetSettings(RecordedDataset):
    """Where the dataset is written, and how its images are stored."""

    video: bool | None = setting(
        None, "store images as videos; false: losslessly, as PNG in the tables (default: true)"
    )

    def __post_init__(self) -> None:
        self.video = False if self.video is False else None  # the fingerprint lacks the default


@dataclass
class RecordSettings:
    """What is recorded, of which episodes (--record.*)."""

    help_group: ClassVar[str] = "Demonstrations"
    help_groups: ClassVar[Mapping[str, str]] = {
        "Action noise": "noise noise_share noise_dims",
    }

    n_episodes: int = setting(
        50, "demonstrations to keep per task", PRESENTATION, least=1, most=MAX_EPISODES
    )
    max_attempts: int | None = setting(
        None,
        f"maximum episodes to run per task (default: {_TRIES_PER_EPISODE} times n_episodes)",
        PRESENTATION,
    )
    keep: EpisodeFilter | None = setting(
        None,
        "episodes to keep: the successful ones, or all (default: success; all with "
        "--record.label=expert)",
    )
    label: ActionLabel | None = setting(
        None,
        "action to record: the policy's (played), or that of the benchmark's scripted expert "
        "in the same state (expert), as in DAgger (default: played)",
    )
    expert_share: float | None = setting(
        None,
        "with --record.label=expert: fraction of ten-step segments in which the expert acts, "
        "0 to 1 (default: 0)",
        least=0,
        most=1,
    )
    images: bool = setting(True, "record camera images; false: record other features only")
    cameras: list[str] | None = setting(
        None, "cameras to record, as [observation.images.top] or [top] (default: all)"
    )
    extra: list[str] = setting(
        [],
        f"additional features to record: {', '.join(EXTRAS)} (default: no additional features)",
        choices=EXTRAS,
    )
    starts: RecordedStarts | None = setting(
        None,
        "with a published list of init states (LIBERO): place scenes at random, by the seed, "
        "or start from the list (published), as evaluations do (default: random)",
    )
    noise: float = setting(
        0.0,
        "standard deviation of the noise on executed actions, in half action ranges; the "
        "clean actions are recorded (default: no noise)",
        least=0,
        most=10,
    )
    noise_share: float = setting(
        1.0, "fraction of the episodes that get noise, above 0 to 1", above=0, most=1
    )
    noise_dims: list[int] | None = setting(
        None, "action dimensions that get noise, as [0,1,2] (default: all)", least=0
    )

    def __post_init__(self) -> None:
        if self.label is ActionLabel.PLAYED:
            self.label = None  # the default is not part of the fingerprint
        if self.starts is RecordedStarts.RANDOM:
            self.starts = None
        if self.keep is None:
            self.keep = EpisodeFilter.SUCCESS if self.label is None else EpisodeFilter.ALL

    @property
    def kept(self) -> EpisodeFilter:
        """Which episodes are kept, with the default resolved."""
        assert self.keep is not None
        return self.keep

    @property
    def published(self) -> bool:
        """Whether demonstrations start from a benchmark's published init states, if it has some."""
        return self.starts is RecordedStarts.PUBLISHED

    @property
    def attempts(self) -> int:
        """Most episodes to run per task."""
        if self.max_attempts is None:
            return min(_TRIES_PER_EPISODE * self.n_episodes, MAX_EPISODES)
        return self.max_attempts

    def validate(self) -> None:
        """Refuse settings that contradict each other."""
        if self.max_attempts is not None and self.max_attempts < self.n_episodes:
            raise UsageError(
                f"--record.max_attempts must be at least {self.n_episodes}, got "
                f"{self.max_attempts}",
                code="flag.out-of-range",
            )
        if self.cameras is not None and not self.images:
            raise UsageError(
                "--record.images=false records no camera; leave --record.cameras out",
                code="flag.conflict",
            )
        if self.cameras == []:
            raise UsageError(
                "--record.cameras is empty; --record.images=false records none", code="flag.empty"
            )
        if self.expert_share is not None and self.label is None:
            raise UsageError(
                "--record.expert_share needs --record.label=expert", code="flag.missing"
            )
        if not self.noise and (self.noise_share != 1 or self.noise_dims is not None):
            raise UsageError(
                "--record.noise_share and .noise_dims need --record.noise=S", code="flag.missing"
            )


@dataclass
class RecordConfig(RunConfig):
    """Config of a recording: a run whose episodes become demonstrations in a dataset."""

    foreign: ClassVar[tuple[str, ...]] = (*RunConfig.foreign, "recording")
    first: ClassVar[str] = (
        "policy.type policy.path policy.device env.type env.task env.task_ids env.id "
        "env.episode_length dataset.repo_id dataset.root dataset.codec dataset.video "
        "record.n_episodes record.max_attempts record.keep record.label record.images "
        "record.cameras record.noise eval.batch_size seed output_dir resume config_path "
        "rename_map"
    )

    dataset: RecordDatasetSettings = field(default_factory=RecordDatasetSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    seed: int = setting(
        RECORDED_SEED,
        "seed of the first episode of each task; episode i uses seed + i. Evaluations start "
        "at 1000, so their episodes are unseen ones",
    )
    output_dir: Path | None = setting(
        None,
        "folder of the run: journal, log and staged episodes (default: the dataset's folder "
        "with .recording appended)",
        PRESENTATION,
    )
    resume: bool = setting(
        False,
        "record the missing demonstrations of --dataset.root or --dataset.repo_id; repeat "
        "flags that name code (MODULE:NAME)",
        PRESENTATION,
    )

    @property
    def run_folder(self) -> Path:
        """The folder of the run."""
        return self.output_dir or run_folder_of(self.dataset)

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.dataset.validate()
        self.record.validate()


def run_folder_of(dataset: RecordedDataset) -> Path:
    """Return the default run folder of a recording: beside the dataset."""
    return dataset.folder.with_name(f"{dataset.folder.name}.recording")
