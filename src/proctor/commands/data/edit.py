"""``proctor data delete, split, merge, ...``: edits that copy rows and video packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.data.arguments import (
    EPISODES,
    DatasetCommand,
    EditCommand,
    find_dataset,
    parse_episodes,
    parse_mapping,
    print_result,
)
from proctor.config.flags.command import CommandConfig, argument
from proctor.errors import UsageError
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.datasets.edit.build import BuiltDataset
    from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset

_SPLITS = "{train: 0.8, val: 0.2}"


@dataclass(kw_only=True)
class DataDeleteCommand(EditCommand):
    """Delete episodes; the frames of the others stay the same, byte by byte.

    The remaining episodes are renumbered. Video packets are copied, not encoded again.
    """

    episodes: str = field(
        metadata={"help": "indices of the episodes to delete", "placeholder": EPISODES}
    )

    def run(self) -> int:
        """Delete the episodes and return the exit code."""
        from proctor.datasets.edit import operations

        episodes = parse_episodes(self.episodes)
        return self.edit(lambda source: operations.delete(source, episodes))


@dataclass(kw_only=True)
class DataSplitCommand(DatasetCommand):
    """Split a dataset into several, by shares or by episodes.

    Each name in --splits becomes a dataset. A share (0.8) takes that part of the episodes, in
    order. Where the shares sum to 1, the last split takes the remainder. A list takes exactly those
    episodes: '{train: [0, 1], val: [2]}'.
    """

    splits: str = field(
        metadata={"help": "fraction or episodes of every split", "placeholder": f"'{_SPLITS}'"}
    )
    output: Path | None = setting(
        None,
        "folder of all splits: DIR/train, DIR/val (default: DATASET_train, DATASET_val)",
        placeholder="DIR",
        alias="new_root",
    )

    def run(self) -> int:
        """Write all splits and return the exit code."""
        from proctor.datasets.edit.split import split_into

        splits = parse_mapping("splits", self.splits, _SPLITS)
        check_splits(splits)
        for built in split_into(find_dataset(self.dataset), splits, self.output).values():
            print_result(built)
        return 0


def check_splits(splits: dict[str, Any]) -> None:
    """Refuse splits that are neither shares nor lists of episodes."""
    for name, share in splits.items():
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        is_list = isinstance(share, list) and all(type(episode) is int for episode in share)
        if not is_number and not is_list:
            raise UsageError(
                f"--splits: {name!r} must be a share (0.8) or a list of episodes ([0, 1])",
                code="flag.invalid-value",
            )


@dataclass(kw_only=True)
class DataMergeCommand(CommandConfig):
    """Merge several datasets into one.

    Episodes keep the order of the datasets. The datasets must have the same fps, robot and
    features. Tasks with the same instruction become one task.
    """

    datasets: list[str] = field(
        metadata=argument(
            "DATASET", "folders of the datasets, or their ids under $HF_LEROBOT_HOME", least=2
        )
    )
    output: Path = field(
        metadata={
            "help": "folder of the merged dataset, which must not exist",
            "placeholder": "DIR",
            "alias": "new_root",
        }
    )

    def run(self) -> int:
        """Write the merged dataset and return the exit code."""
        print_result(merge_into([find_dataset(name) for name in self.datasets], self.output))
        return 0


def merge_into(roots: list[Path], output: Path) -> BuiltDataset:
    """Write one dataset with the episodes of several."""
    from proctor.datasets.edit import operations
    from proctor.datasets.edit.build import build
    from proctor.datasets.edit.destination import new_destination
    from proctor.datasets.edit.edit_plan import open_source

    destination = new_destination(output)
    return build(operations.merge([open_source(root) for root in roots]), destination)


@dataclass(kw_only=True)
class DataRenameFeatureCommand(EditCommand):
    """Rename a feature in tables, videos and statistics."""

    old: str = field(metadata=argument("OLD", "name of the feature today"))
    new: str = field(metadata=argument("NEW", "its new name"))

    def run(self) -> int:
        """Rename the feature and return the exit code."""
        from proctor.datasets.edit import operations

        return self.edit(lambda source: operations.rename_feature(source, self.old, self.new))


@dataclass(kw_only=True)
class DataRemoveFeatureCommand(EditCommand):
    """Remove features: their columns, videos and statistics."""

    features: list[str] = field(metadata=argument("FEATURE", "names of the features to remove"))

    def run(self) -> int:
        """Remove the features and return the exit code."""
        from proctor.datasets.edit import operations

        return self.edit(lambda source: operations.remove_features(source, self.features))


@dataclass(kw_only=True)
class DataSetTaskCommand(EditCommand):
    """Change the task instruction of episodes.

    Give --task, --tasks or both. Tasks that no episode has any more are removed.
    """

    task: str | None = setting(
        None,
        "new task instruction of the episodes in --episodes (default: from --tasks only)",
        placeholder="TEXT",
    )
    episodes: str | None = setting(
        None, "indices of the episodes that get --task (default: all)", placeholder=EPISODES
    )
    tasks: str | None = setting(
        None,
        "new task instructions by episode; they take precedence over --task (default: no "
        "other instructions)",
        placeholder='\'{"0": "TEXT"}\'',
    )

    def validate(self) -> None:
        """Refuse a command without an instruction."""
        if self.task is None and self.tasks is None:
            raise UsageError(
                'set-task needs --task=TEXT, or --tasks=\'{"0": "TEXT"}\'', code="flag.missing"
            )

    def run(self) -> int:
        """Change the instructions and return the exit code."""
        chosen = None if self.episodes is None else parse_episodes(self.episodes)
        by_episode: dict[str, Any] = {}
        if self.tasks is not None:
            by_episode = parse_mapping("tasks", self.tasks, '{"0": "lift the cup"}')
        return self.edit(lambda source: plan_set_tasks(source, self.task, chosen, by_episode))


def plan_set_tasks(
    source: SourceDataset, task: str | None, episodes: list[int] | None, by_episode: dict[str, Any]
) -> EditPlan:
    """Plan to give ``task`` to ``episodes`` (None: all), and others ``by_episode``."""
    from proctor.datasets.edit import operations

    chosen = range(len(source.rows)) if episodes is None else episodes
    new = {} if task is None else dict.fromkeys(chosen, task)
    for episode, instruction in by_episode.items():
        if not episode.isdecimal() or not isinstance(instruction, str):
            raise UsageError(
                f"--tasks: {episode}: {instruction!r} must be an episode and its instruction",
                code="flag.invalid-value",
            )
        new[int(episode)] = instruction
    return operations.set_tasks(source, new)


@dataclass(kw_only=True)
class DataConvertCommand(EditCommand):
    """Convert a dataset of format version 2.0 or 2.1 to 3.0.

    A file of version 3.0 holds many episodes instead of one. Video packets are copied. Missing
    statistics are computed.
    """

    def run(self) -> int:
        """Convert the dataset and return the exit code."""
        from proctor.datasets.edit import operations

        return self.edit(operations.convert)
