"""``proctor data edit``: the flags of ``lerobot-edit-dataset``, so that existing scripts run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.commands.data.arguments import (
    find_dataset,
    parse_episodes,
    parse_mapping,
    parse_names,
    print_result,
)
from proctor.commands.data.edit import check_splits, merge_into, plan_set_tasks
from proctor.commands.data.encode import DEFAULT_CODEC, EncoderOptions
from proctor.commands.data.hub import push_and_name
from proctor.commands.data.info import DataInfoCommand
from proctor.config.flags.command import CommandConfig, build_command, command_help
from proctor.config.flags.help_lines import FLAGS, WIDTH, help_lines
from proctor.config.flags.help_search import OwnedFlag
from proctor.config.flags.parsing import flags_of, path_of, read_config_file, split_argv
from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import flatten
from proctor.permissions import require_permission
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.datasets.edit.build import BuiltDataset
    from proctor.datasets.edit.destination import Destination
    from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset

    Plan = Callable[[SourceDataset], EditPlan]

_SPEED = (
    "num_workers",
    "max_episodes_per_batch",
    "max_frames_per_batch",
    "encoder_threads",
    "concatenate_videos",
    "concatenate_data",
)
"""Flags that set only how fast LeRobot works, or how it packs files: accepted with a note."""
_RELATIVE = "statistics of relative actions are not written here; use lerobot-edit-dataset for them"
_REFUSED = {
    "operation.relative_": _RELATIVE,
    "operation.chunk_size": _RELATIVE,
    "operation.depth_encoder.": "depth videos keep their encoding; leave the flag out",
}
"""LeRobot's flags, by prefix, that are refused, and the reason."""
_SPLITS = '{"train": 0.8, "val": 0.2}'


@dataclass(kw_only=True)
class Operation:
    """An edit of ``lerobot-edit-dataset``; its fields are the flags --operation.NAME."""

    type: ClassVar[str]

    def plan(self) -> Plan:
        """Return the plan of an edit of one dataset into one dataset."""
        raise NotImplementedError


@dataclass(kw_only=True)
class DeleteEpisodes(Operation):
    """Delete episodes."""

    type: ClassVar[str] = "delete_episodes"
    episode_indices: str = field(
        metadata={"help": "indices of the episodes to delete", "placeholder": "'[1, 2]'"}
    )

    def plan(self) -> Plan:
        """Return the plan that deletes the episodes."""
        from proctor.datasets.edit import operations

        episodes = parse_episodes(self.episode_indices)
        return lambda source: operations.delete(source, episodes)


@dataclass(kw_only=True)
class SplitDataset(Operation):
    """Split a dataset into several."""

    type: ClassVar[str] = "split"
    splits: str = field(
        metadata={"help": "fraction or episodes of every split", "placeholder": f"'{_SPLITS}'"}
    )


@dataclass(kw_only=True)
class MergeDatasets(Operation):
    """Merge several datasets into one."""

    type: ClassVar[str] = "merge"
    repo_ids: str = field(
        metadata={"help": "ids of the datasets to merge", "placeholder": "'[a/b, a/c]'"}
    )
    roots: str = setting(
        "[]",
        "folders of the datasets, in the order of repo_ids (default: $HF_LEROBOT_HOME/ID)",
        placeholder="'[DIR, DIR]'",
    )


@dataclass(kw_only=True)
class RemoveFeatures(Operation):
    """Remove features."""

    type: ClassVar[str] = "remove_feature"
    feature_names: str = field(
        metadata={
            "help": "features to remove",
            "placeholder": "'[observation.images.top]'",
        }
    )

    def plan(self) -> Plan:
        """Return the plan that removes the features."""
        from proctor.datasets.edit import operations

        keys = parse_names(self.feature_names)
        return lambda source: operations.remove_features(source, keys)


@dataclass(kw_only=True)
class ModifyTasks(Operation):
    """Change the task instruction of episodes."""

    type: ClassVar[str] = "modify_tasks"
    new_task: str | None = setting(
        None,
        "new task instruction of all episodes (default: from episode_tasks only)",
        placeholder="TEXT",
    )
    episode_tasks: str | None = setting(
        None,
        "new task instructions by episode; they take precedence over the other two (default: "
        "no other instructions)",
        placeholder='\'{"0": "TEXT"}\'',
    )
    task_replacements: str | None = setting(
        None,
        "new task instructions by old ones; they take precedence over new_task (default: no "
        "replacements)",
        placeholder='\'{"OLD": "NEW"}\'',
    )

    def plan(self) -> Plan:
        """Return the plan that changes the instructions."""
        by_episode: dict[str, Any] = {}
        if self.episode_tasks is not None:
            name = "operation.episode_tasks"
            by_episode = parse_mapping(name, self.episode_tasks, '{"0": "lift the cup"}')
        replaced: dict[str, Any] = {}
        if self.task_replacements is not None:
            name = "operation.task_replacements"
            replaced = parse_mapping(name, self.task_replacements, '{"lift it": "lift the cup"}')
        if self.new_task is None and not by_episode and not replaced:
            raise UsageError(
                "modify_tasks needs --operation.new_task, --operation.episode_tasks or "
                "--operation.task_replacements",
                code="flag.missing",
            )

        def plan(source: SourceDataset) -> EditPlan:
            of_replaced = _replaced_tasks(source, replaced)
            return plan_set_tasks(source, self.new_task, None, of_replaced | by_episode)

        return plan


def _replaced_tasks(source: SourceDataset, replaced: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new instructions of the episodes whose instruction is replaced."""
    for old in replaced:
        if old not in source.tasks:
            raise UsageError(
                f"--operation.task_replacements: {source.root} has no instruction {old!r}"
                f"{did_you_mean(old, source.tasks)}",
                code="dataset.unknown-task",
            )
    first = {str(row.index): (row.tasks or ("",))[0] for row in source.rows}
    return {episode: replaced[task] for episode, task in first.items() if task in replaced}


@dataclass(kw_only=True)
class EncodeOperation(EncoderOptions, Operation):
    """An operation that encodes videos."""

    vcodec: str = setting(DEFAULT_CODEC, "video encoder, such as libsvtav1, h264, hevc")


@dataclass(kw_only=True)
class ImagesToVideos(EncodeOperation):
    """Encode the images in tables as videos."""

    type: ClassVar[str] = "convert_image_to_video"
    output_dir: Path | None = setting(
        None, "folder of the result (default: --new_root)", placeholder="DIR"
    )
    episode_indices: str | None = setting(
        None, "indices of the episodes to keep (default: all)", placeholder="'[1, 2]'"
    )

    def plan(self) -> Plan:
        """Return the plan that encodes the images."""
        from proctor.datasets.edit import operations

        codec, text = self.encoder(self.vcodec), self.episode_indices or "None"
        episodes = None if text.lower() in ("none", "null") else parse_episodes(text)
        return lambda source: operations.to_video(source, codec, episodes)


@dataclass(kw_only=True)
class ReencodeVideos(EncodeOperation):
    """Encode all videos again."""

    type: ClassVar[str] = "reencode_videos"
    overwrite: bool = setting(
        False, "replace the dataset instead of writing NAME_reencoded beside it"
    )

    def plan(self) -> Plan:
        """Return the plan that encodes the videos."""
        from proctor.datasets.edit import operations

        codec = self.encoder(self.vcodec)
        return lambda source: operations.reencode(source, [], codec)


@dataclass(kw_only=True)
class RecomputeStats(Operation):
    """Compute the statistics again."""

    type: ClassVar[str] = "recompute_stats"
    skip_image_video: bool = setting(
        True, "skip the statistics of cameras; false: compute these too"
    )
    overwrite: bool = setting(
        False, "no effect, accepted for LeRobot's scripts: --new_root decides where the result goes"
    )

    def plan(self) -> Plan:
        """Return the plan that computes the statistics."""
        from proctor.datasets.edit import operations

        cameras = not self.skip_image_video
        return lambda source: operations.recompute_statistics(source, pictures=cameras)


@dataclass(kw_only=True)
class ShowInfo(Operation):
    """Print what ``proctor data info`` prints."""

    type: ClassVar[str] = "info"
    show_features: bool = setting(
        True, "no effect, accepted for LeRobot's scripts: features are always printed"
    )


OPERATIONS: dict[str, type[Operation]] = {
    cls.type: cls
    for cls in (
        DeleteEpisodes,
        SplitDataset,
        MergeDatasets,
        RemoveFeatures,
        ModifyTasks,
        ImagesToVideos,
        ReencodeVideos,
        RecomputeStats,
        ShowInfo,
    )
}


@dataclass(kw_only=True)
class DataEditCommand(CommandConfig):
    """Run the same edits with the flags of lerobot-edit-dataset.

    Without --root and --new_root, datasets are found under $HF_LEROBOT_HOME by their ids. If the
    result's folder is the dataset's own, the dataset is replaced. The old dataset is then kept
    beside it as NAME_old, or as NAME_old_2 if that exists. Encoder flags may also be written
    --operation.rgb_encoder.NAME. Flags that only set LeRobot's speed (num_workers, ...) are
    accepted and have no effect.
    """

    operation: Operation = field(metadata={"help": "edit to run"})
    repo_id: str | None = setting(
        None, "id of the dataset, as user/name (required without --root)", placeholder="ID"
    )
    root: str | None = setting(
        None, "folder of the dataset (default: $HF_LEROBOT_HOME/ID)", placeholder="DIR"
    )
    new_repo_id: str | None = setting(
        None, "id of the result (default: the dataset's)", placeholder="ID"
    )
    new_root: Path | None = setting(
        None,
        "folder of the result (default: $HF_LEROBOT_HOME/NEW_ID, or the dataset's)",
        placeholder="DIR",
    )
    backup: bool = setting(
        True,
        "keep a dataset that is replaced, beside the result; false removes it. LeRobot has "
        "no such flag",
    )
    push_to_hub: bool = setting(False, "upload the result to the Hub under its id")

    @classmethod
    def parse(cls, prog: str, words: Sequence[str]) -> DataEditCommand | None:
        """Build the command from LeRobot's spellings; print the help for ``--help``."""
        if cls.answer_help(prog, words):
            return None
        switches = {
            "backup",
            "push_to_hub",
            "operation.overwrite",
            "operation.skip_image_video",
        }
        positional, given = split_argv(list(words), switches)
        if "config_path" in given:
            given = _of_file(path_of(given.pop("config_path"), "--config_path"), given) | given
        flags: dict[str, str] = {}
        for written, value in given.items():
            name = written.replace("-", "_").replace("operation.rgb_encoder.", "operation.")
            reason = next((why for start, why in _REFUSED.items() if name.startswith(start)), None)
            if reason is not None:
                raise UsageError(f"--{written}: {reason}", code="flag.unsupported")
            if name.removeprefix("operation.") in _SPEED:
                print(f"--{written} changes nothing here", file=sys.stderr)
            elif name in flags:
                raise UsageError(f"--{name} is given twice", code="flag.duplicate")
            else:
                flags[name] = value
        if positional:
            raise UsageError(
                f"{prog} takes flags only, got {positional[0]!r} (see {prog} --help)",
                code="argument.count",
            )
        return build_command(cls, prog, (), flags, {"operation": _operation_class(flags)})

    @classmethod
    def help(cls, prog: str, width: int = WIDTH) -> str:
        """Return the flags of the command and those of every operation."""
        lines = [command_help(cls, f"{prog} --operation.type=TYPE", {"operation": None}, width)]
        for name, operation in OPERATIONS.items():
            flags = flags_of(operation, "operation.")
            lines += [f"--operation.type={name}", *help_lines(flags, width), ""]
        return "\n".join(lines)

    @classmethod
    def all_flags(cls) -> list[OwnedFlag]:
        """List the flags of the command and those of every operation."""
        found = [OwnedFlag(flag, FLAGS) for flag in flags_of(cls, sections={"operation": None})]
        for name, operation in OPERATIONS.items():
            flags = flags_of(operation, "operation.")
            found += [OwnedFlag(flag, f"--operation.type={name}") for flag in flags]
        return found

    def run(self) -> int:
        """Run the operation and return the exit code."""
        operation = self.operation
        if isinstance(operation, ShowInfo):
            return DataInfoCommand(dataset=str(self._source())).run()
        if isinstance(operation, MergeDatasets):
            made = [(self.new_repo_id, self._merge(operation))]
        elif isinstance(operation, SplitDataset):
            from proctor.datasets.edit.split import split_into

            splits = parse_mapping("operation.splits", operation.splits, _SPLITS)
            check_splits(splits)
            built = split_into(self._source(), splits, self.new_root)
            made = [(self.repo_id and f"{self.repo_id}_{name}", one) for name, one in built.items()]
        else:
            made = [(self.new_repo_id or self.repo_id, self._edit(operation))]
        for _, built_one in made:
            print_result(built_one)
        if self.push_to_hub:
            _push(made)
        return 0

    def _merge(self, operation: MergeDatasets) -> BuiltDataset:
        repos = parse_names(operation.repo_ids)
        roots = parse_names(operation.roots) or repos
        if len(roots) != len(repos):
            raise UsageError(
                f"--operation.roots: {len(repos)} repo_ids need as many roots, got {len(roots)}",
                code="flag.conflict",
            )
        return merge_into([find_dataset(name) for name in roots], self._new_root(None))

    def _edit(self, operation: Operation) -> BuiltDataset:
        from proctor.datasets.edit.build import edit

        root = self._source()
        return edit(root, self._destination(root), operation.plan())

    def _source(self) -> Path:
        """Return the folder of the dataset to edit."""
        name = self.repo_id if self.root is None else self.root
        if name is None:
            raise UsageError("which dataset? --repo_id=ID, --root=DIR", code="flag.missing")
        return find_dataset(name)

    def _destination(self, root: Path) -> Destination:
        """Return where the result goes: in place, as in LeRobot, unless a flag says otherwise."""
        from proctor.datasets.edit.destination import in_place_destination, new_destination

        default, operation = root, self.operation
        if isinstance(operation, ReencodeVideos) and not operation.overwrite:
            default = root.resolve().with_name(f"{root.resolve().name}_reencoded")
        target = self._new_root(default)
        if target.resolve() == root.resolve():
            return in_place_destination(root, keep_old=self.backup)
        return new_destination(target)

    def _new_root(self, default: Path | None) -> Path:
        from proctor.datasets.source import lerobot_home

        folder = self.new_root
        if folder is None and isinstance(self.operation, ImagesToVideos):
            folder = self.operation.output_dir
        if folder is not None:
            return folder
        if self.new_repo_id is not None:
            return lerobot_home() / self.new_repo_id
        if default is None:
            raise UsageError(
                f"{self.operation.type} needs --new_repo_id=ID or --new_root=DIR for its result",
                code="flag.missing",
            )
        return default


def _of_file(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of a config file of ``lerobot-edit-dataset``; unset ones are left out."""
    content = read_config_file(path)
    flags = {name.replace("-", "_"): value for name, value in given.items()}
    require_permission(content, flags, str(path), ("root", "new_root", "operation.output_dir"))
    flat = flatten(content, lambda name, value: name == "operation")
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in flat.items()
        if value is not None
    }


def _operation_class(flags: dict[str, str]) -> type[Operation]:
    """Take --operation.type out of ``flags`` and return its class."""
    name = flags.pop("operation.type", None)
    if name not in OPERATIONS:
        hint = did_you_mean(name, OPERATIONS) if name else ""
        asked = f"unknown operation {name!r}" if name else "which operation? --operation.type=TYPE"
        raise UsageError(
            f"{asked}{hint} (TYPE: {', '.join(OPERATIONS)})",
            code="flag.invalid-value" if name else "flag.missing",
        )
    return OPERATIONS[name]


def _push(made: list[tuple[str | None, BuiltDataset]]) -> None:
    for repo, built in made:
        if repo is None:
            raise UsageError(
                "--push_to_hub needs the id of the result: --new_repo_id or --repo_id",
                code="flag.missing",
            )
        print(push_and_name(built.root, repo))
