"""``proctor data edit``: the words of ``lerobot-edit-dataset``, so that old scripts run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands import data_info
from proctor.commands.data_arguments import (
    ParsedArgs,
    find_dataset,
    parse_episodes,
    parse_mapping,
    parse_names,
    print_result,
)
from proctor.commands.data_edit import merge_into, plan_set_tasks, split_into
from proctor.commands.data_encode import codec_from_flags
from proctor.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from proctor.datasets.edit.build import BuiltDataset
    from proctor.datasets.edit.destination import Destination
    from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset

_USAGE = """\
proctor data edit --operation.type=TYPE [--operation.NAME=VALUE ...] --repo_id=ID [--root=DIR]
                  [--new_repo_id=ID] [--new_root=DIR] [--push_to_hub=true]

Takes the words of lerobot-edit-dataset. --root and --new_root are the folders of the dataset and of
the result; without them they lie under $HF_LEROBOT_HOME by their ids. Where both are the same the
dataset is replaced, and the old one is kept beside it as NAME_old, in the place of an older one.

  delete_episodes         --operation.episode_indices='[1, 2]'
  split                   --operation.splits='{"train": 0.8, "val": 0.2}'
  merge                   --operation.repo_ids='[a/b, a/c]' [--operation.roots='[DIR, DIR]']
  remove_feature          --operation.feature_names='[observation.images.top]'
  modify_tasks            [--operation.new_task=TEXT] [--operation.episode_tasks='{"0": "TEXT"}']
  convert_image_to_video  [--operation.rgb_encoder.vcodec=h264 ...] [--operation.output_dir=DIR]
  reencode_videos         [--operation.rgb_encoder.vcodec=h264 ...] [--operation.overwrite=true]
  recompute_stats         [--operation.skip_image_video=false] [--operation.overwrite=true]
  info

Of the encoder: vcodec, crf, g, preset, pix_fmt. What only says how fast LeRobot shall be
(num_workers, ...) is taken and changes nothing.
"""
_OWN = ("repo_id", "root", "new_repo_id", "new_root", "push_to_hub")
_FOR_SPEED = ("num_workers", "max_episodes_per_batch", "max_frames_per_batch", "encoder_threads")
_ENCODER = ("vcodec", "crf", "g", "preset", "pix_fmt")
_NAMES = {
    "delete_episodes": ("episode_indices",),
    "split": ("splits",),
    "merge": ("repo_ids", "roots"),
    "remove_feature": ("feature_names",),
    "modify_tasks": ("new_task", "episode_tasks"),
    "convert_image_to_video": ("output_dir", "episode_indices", *_ENCODER),
    "reencode_videos": ("overwrite", *_ENCODER),
    "recompute_stats": ("skip_image_video", "overwrite"),
    "info": ("show_features",),
}
_WITHOUT_BACKUP = ("modify_tasks", "recompute_stats")
"""What LeRobot changes in place."""


@dataclass(frozen=True)
class _Edit:
    """One call: its own words, and those of its operation."""

    type: str
    own: ParsedArgs
    operation: ParsedArgs

    def needed(self, name: str, example: str) -> str:
        if name not in self.operation.flags:
            raise UsageError(
                f"{self.type} needs --operation.{name} (such as --operation.{name}='{example}')"
            )
        return self.operation.flags[name]


def edit(words: list[str]) -> int:
    """Run ``proctor data edit`` and return its exit code."""
    from proctor.config.flags import split_argv

    switches = {"help", "push_to_hub", "operation.overwrite", "operation.skip_image_video"}
    positional, given = split_argv(words, switches)
    if "help" in given:
        print(_USAGE, end="")
        return 0
    if positional:
        raise UsageError(f"edit takes flags only, got {positional[0]!r} (proctor data edit --help)")
    return _run(_edit_of({name.replace("-", "_"): value for name, value in given.items()}))


def _edit_of(given: Mapping[str, str]) -> _Edit:
    """Return what is asked for.

    Raises:
        UsageError: a type or a name is not known.
    """
    kind = given.get("operation.type")
    if kind not in _NAMES:
        hint = did_you_mean(kind, _NAMES) if kind else ""
        asked = f"unknown operation {kind!r}" if kind else "which operation? --operation.type=TYPE"
        raise UsageError(f"{asked}{hint} (TYPE: {', '.join(_NAMES)})")
    own: dict[str, str] = {}
    operation: dict[str, str] = {}
    for name, value in given.items():
        inner = name.removeprefix("operation.").removeprefix("rgb_encoder.")
        if name in _OWN:
            own[name] = value
        elif name.startswith("operation.") and inner in _NAMES[kind]:
            operation["codec" if inner == "vcodec" else inner] = value
        elif inner in _FOR_SPEED:
            print(f"--{name} changes nothing here", file=sys.stderr)
        elif name != "operation.type":
            known = [*_OWN, *(f"operation.{word}" for word in _NAMES[kind])]
            hint = did_you_mean(f"--{name}", [f"--{word}" for word in known]).replace("'", "")
            raise UsageError(f"{kind} has no flag --{name}{hint}")
    return _Edit(kind, ParsedArgs("edit", [], own), ParsedArgs(kind, [], operation))


def _run(asked: _Edit) -> int:
    from proctor.config.flags import path_of

    if asked.type == "info":  # which always shows features
        return data_info.run([str(_source(asked))])
    made: list[tuple[str | None, BuiltDataset]]
    if asked.type == "merge":
        made = [(asked.own.flags.get("new_repo_id"), _merged(asked))]
    elif asked.type == "split":
        example = '{"train": 0.8, "val": 0.2}'
        splits = parse_mapping("operation.splits", asked.needed("splits", example), example)
        base = asked.own.flags.get("new_root")
        built = split_into(_source(asked), splits, None if base is None else path_of(base))
        repo = asked.own.flags.get("repo_id")
        made = [(repo and f"{repo}_{name}", one) for name, one in built.items()]
    else:
        made = [_edited(asked)]
    for _, built_one in made:
        print_result(built_one)
    if asked.own.switch("push_to_hub"):
        _push(made)
    return 0


def _push(made: list[tuple[str | None, BuiltDataset]]) -> None:
    from proctor.datasets.hub import push

    for repo, built in made:
        if repo is None:
            raise UsageError("--push_to_hub needs the id of the result: --new_repo_id or --repo_id")
        print(push(built.root, repo))


def _merged(asked: _Edit) -> BuiltDataset:
    repos = parse_names(asked.needed("repo_ids", "[a/b, a/c]"))
    roots = parse_names(asked.operation.flags.get("roots", "[]")) or repos
    if len(roots) != len(repos):
        raise UsageError(f"{len(repos)} repo_ids and {len(roots)} roots: one of each a dataset")
    return merge_into([find_dataset(name) for name in roots], _new_root(asked, None))


def _edited(asked: _Edit) -> tuple[str | None, BuiltDataset]:
    from proctor.datasets.edit.build import edit as make

    root = _source(asked)
    own = asked.own.flags
    built = make(root, _place(asked, root), _RECIPES[asked.type](asked))
    return own.get("new_repo_id", own.get("repo_id")), built


def _source(asked: _Edit) -> Path:
    """Return the folder of the dataset that is edited."""
    name = asked.own.flags.get("root", asked.own.flags.get("repo_id"))
    if name is None:
        raise UsageError("which dataset? --repo_id=ID, --root=DIR")
    return find_dataset(name)


def _place(asked: _Edit, root: Path) -> Destination:
    """Return where the result goes: by LeRobot's rules, the same folder if no other is named."""
    from proctor.datasets.edit.destination import in_place_destination, new_destination

    default = root
    if asked.type == "reencode_videos" and not asked.operation.switch("overwrite"):
        default = root.resolve().with_name(f"{root.resolve().name}_reencoded")
    target = _new_root(asked, default)
    if target.resolve() == root.resolve():
        return in_place_destination(root, keep_old=asked.type not in _WITHOUT_BACKUP)
    return new_destination(target)


def _new_root(asked: _Edit, default: Path | None) -> Path:
    from proctor.config.flags import path_of
    from proctor.datasets.source import lerobot_home

    folder = asked.own.flags.get("new_root", asked.operation.flags.get("output_dir"))
    if folder is not None:
        return path_of(folder)
    if "new_repo_id" in asked.own.flags:
        return lerobot_home() / asked.own.flags["new_repo_id"]
    if default is None:
        raise UsageError(f"{asked.type} needs --new_repo_id=ID or --new_root=DIR for its result")
    return default


Make = Callable[["SourceDataset"], "EditPlan"]


def _delete(asked: _Edit) -> Make:
    from proctor.datasets.edit import operations

    episodes = parse_episodes(asked.needed("episode_indices", "[1, 2]"))
    return lambda source: operations.delete(source, episodes)


def _remove(asked: _Edit) -> Make:
    from proctor.datasets.edit import operations

    keys = parse_names(asked.needed("feature_names", "[observation.images.top]"))
    return lambda source: operations.remove_features(source, keys)


def _modify_tasks(asked: _Edit) -> Make:
    task = asked.operation.flags.get("new_task")
    some: dict[str, Any] = {}
    if "episode_tasks" in asked.operation.flags:
        text = asked.operation.flags["episode_tasks"]
        some = parse_mapping("operation.episode_tasks", text, '{"0": "lift the cup"}')
    if task is None and not some:
        raise UsageError("modify_tasks needs --operation.new_task or --operation.episode_tasks")
    return lambda source: plan_set_tasks(source, task, None, some)


def _to_video(asked: _Edit) -> Make:
    from proctor.datasets.edit import operations

    codec, text = (
        codec_from_flags(asked.operation),
        asked.operation.flags.get("episode_indices", "None"),
    )
    episodes = None if text.lower() in ("none", "null") else parse_episodes(text)
    return lambda source: operations.to_video(source, codec, episodes)


def _reencode(asked: _Edit) -> Make:
    from proctor.datasets.edit import operations

    codec = codec_from_flags(asked.operation)
    return lambda source: operations.reencode(source, [], codec)


def _recount(asked: _Edit) -> Make:
    from proctor.datasets.edit import operations

    given = asked.operation
    pictures = "skip_image_video" in given.flags and not given.switch("skip_image_video")
    return lambda source: operations.recompute_statistics(source, pictures=pictures)


_RECIPES: dict[str, Callable[[_Edit], Make]] = {
    "delete_episodes": _delete,
    "remove_feature": _remove,
    "modify_tasks": _modify_tasks,
    "convert_image_to_video": _to_video,
    "reencode_videos": _reencode,
    "recompute_stats": _recount,
}
