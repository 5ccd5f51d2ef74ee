"""What one recording of demonstrations is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proctor.callbacks.action_labels import ActionLabel
from proctor.callbacks.staged_episodes import Keep
from proctor.config.base import RunConfig
from proctor.config.bounds import at_least, between
from proctor.datasets.frames.encoder import CODECS
from proctor.datasets.source import lerobot_home
from proctor.errors import UsageError, did_you_mean
from proctor.features import ENVIRONMENT_STATE, REWARD, SUCCESS
from proctor.fingerprint import PRESENTATION
from proctor.system.hub import HUB_ID
from proctor.types import MAX_EPISODES

EXTRAS = ("environment_state", REWARD, SUCCESS)
"""What --record.extra may name, in the order it is written in."""
_TRIES_PER_EPISODE = 4
_MOST_NOISE = 10.0


@dataclass
class RecordDatasetSettings:
    """Where the dataset lies and how its pictures are kept."""

    repo_id: str | None = field(
        default=None, metadata={"help": "its name, as on the Hub: USER/NAME"} | PRESENTATION
    )
    root: Path | None = field(
        default=None,
        metadata={"help": "its folder (default: $HF_LEROBOT_HOME/REPO_ID)"} | PRESENTATION,
    )
    codec: str = field(
        default="av1", metadata={"help": f"of its videos, one of {', '.join(CODECS)}"}
    )
    video: bool | None = field(
        default=None,
        metadata={
            "help": "false: pictures lie in the tables, each a PNG to the bit, not in videos"
        },
    )

    def __post_init__(self) -> None:
        self.video = False if self.video is False else None  # what is left alone defines nothing

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        if self.repo_id is None and self.root is None:
            raise UsageError(
                "say where to record to: --dataset.repo_id=USER/NAME or .root=DIR",
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
        if self.codec not in CODECS:
            raise UsageError(
                f"--dataset.codec: there is no {self.codec!r}{did_you_mean(self.codec, CODECS)} "
                f"(choose from {', '.join(CODECS)})",
                code="flag.invalid-value",
            )

    @property
    def folder(self) -> Path:
        """Where the dataset lies."""
        if self.root is not None:
            return self.root.absolute()
        assert self.repo_id is not None
        return lerobot_home() / self.repo_id


@dataclass
class RecordSettings:
    """What is recorded, of which episodes."""

    n_episodes: int = field(
        default=50, metadata={"help": "demonstrations to keep, per task"} | PRESENTATION
    )
    max_attempts: int | None = field(
        default=None,
        metadata={
            "help": "most episodes played per task to keep n_episodes of "
            f"(default: {_TRIES_PER_EPISODE} times n_episodes)"
        }
        | PRESENTATION,
    )
    keep: Keep | None = field(
        default=None,
        metadata={
            "help": "episodes that succeed, or failures too (default: success; all with "
            "--record.label=expert)"
        },
    )
    label: ActionLabel | None = field(
        default=None,
        metadata={
            "help": "what is recorded as the action: played (the policy's, the default), or "
            "expert: what the benchmark's scripted expert would have done in that state"
        },
    )
    expert_share: float | None = field(
        default=None,
        metadata={
            "help": "with --record.label=expert: the share of stretches of ten steps that the "
            "expert plays in the policy's place (default: 0)"
        },
    )
    images: bool = field(default=True, metadata={"help": "false: numbers only"})
    cameras: list[str] | None = field(
        default=None,
        metadata={"help": "only these, as [observation.images.top] or [top]; default: all"},
    )
    extra: list[str] = field(
        default_factory=list,
        metadata={"help": f"further features, of {', '.join(EXTRAS)}"},
    )
    noise: float = field(
        default=0.0,
        metadata={
            "help": "play actions disturbed in bursts and record what the policy wanted: the "
            "standard deviation, in halves of the action's range"
        },
    )
    noise_share: float = field(
        default=1.0, metadata={"help": "the share of the episodes that are disturbed"}
    )
    noise_dims: list[int] | None = field(
        default=None,
        metadata={"help": "the numbers of an action that are disturbed, as [0,1,2]; default: all"},
    )

    def __post_init__(self) -> None:
        if self.label is ActionLabel.PLAYED:
            self.label = None  # what is left alone defines nothing
        if self.keep is None:
            self.keep = Keep.SUCCESS if self.label is None else Keep.ALL

    @property
    def kept(self) -> Keep:
        """Which episodes are kept, said or not."""
        assert self.keep is not None
        return self.keep

    @property
    def attempts(self) -> int:
        """Most episodes that are played of a task."""
        if self.max_attempts is None:
            return min(_TRIES_PER_EPISODE * self.n_episodes, MAX_EPISODES)
        return self.max_attempts

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        between("record.n_episodes", self.n_episodes, 1, MAX_EPISODES)
        if self.max_attempts is not None:
            between("record.max_attempts", self.max_attempts, self.n_episodes, MAX_EPISODES)
        if self.cameras is not None and not self.images:
            raise UsageError(
                "--record.images=false records no camera; leave --record.cameras out",
                code="flag.conflict",
            )
        if self.cameras == []:
            raise UsageError(
                "--record.cameras is empty; --record.images=false records none", code="flag.empty"
            )
        for name in self.extra:
            if name not in EXTRAS and name != ENVIRONMENT_STATE:
                raise UsageError(
                    f"--record.extra: there is no {name!r}{did_you_mean(name, EXTRAS)} "
                    f"(choose from {', '.join(EXTRAS)})",
                    code="flag.invalid-value",
                )
        if self.expert_share is not None and self.label is None:
            raise UsageError(
                "--record.expert_share needs --record.label=expert", code="flag.missing"
            )
        if self.expert_share is not None and not 0 <= self.expert_share <= 1:
            raise UsageError(
                f"--record.expert_share must be 0 to 1, got {self.expert_share:g}",
                code="flag.out-of-range",
            )
        self._validate_noise()

    def _validate_noise(self) -> None:
        if not 0 <= self.noise <= _MOST_NOISE:
            raise UsageError(
                f"--record.noise must be 0 to {_MOST_NOISE:g}, got {self.noise:g}",
                code="flag.out-of-range",
            )
        if not 0 < self.noise_share <= 1:
            raise UsageError(
                f"--record.noise_share must be above 0 and at most 1, got {self.noise_share:g}",
                code="flag.out-of-range",
            )
        for number in self.noise_dims or ():
            at_least("record.noise_dims", number, 0)
        if not self.noise and (self.noise_share != 1 or self.noise_dims is not None):
            raise UsageError(
                "--record.noise_share and .noise_dims need --record.noise=S", code="flag.missing"
            )


@dataclass
class RecordConfig(RunConfig):
    """One recording: which policy shows what, in which world, into which dataset."""

    first: ClassVar[str] = (
        "policy.type policy.path policy.device env.type env.task env.task_ids env.id "
        "env.episode_length dataset.repo_id dataset.root dataset.codec dataset.video "
        "record.n_episodes record.max_attempts record.keep record.label record.images "
        "record.cameras record.noise eval.batch_size seed output_dir resume config_path "
        "rename_map"
    )

    dataset: RecordDatasetSettings = field(default_factory=RecordDatasetSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    output_dir: Path | None = field(
        default=None,
        metadata={
            "help": "the run folder: journal, log and what waits for its turn (default: the "
            "dataset's folder and .recording)"
        }
        | PRESENTATION,
    )
    resume: bool = field(
        default=False,
        metadata={
            "help": "record what is missing in the dataset; needs no other flag but where it is, "
            "and types that are MODULE:NAME"
        }
        | PRESENTATION,
    )

    @property
    def run_folder(self) -> Path:
        """Where the journal of the recording lies."""
        return self.output_dir or run_folder_of(self.dataset)

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        super().validate()
        self.dataset.validate()
        self.record.validate()


def run_folder_of(dataset: RecordDatasetSettings) -> Path:
    """Return where the journal of a recording lies unless told otherwise: beside the dataset."""
    return dataset.folder.with_name(f"{dataset.folder.name}.recording")
