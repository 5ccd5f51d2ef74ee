"""``proctor data delete, split, merge, ...``: edits that copy packets and rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.data_arguments import (
    PLACE_FLAGS,
    PLACE_HELP,
    ParsedArgs,
    find_dataset,
    parse_args,
    parse_episodes,
    parse_mapping,
    print_result,
)
from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.datasets.edit.build import BuiltDataset
    from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset

_DELETE = f"""\
proctor data delete DATASET --episodes=0,3,5-9 (--output=DIR | --in_place)

Makes the dataset without these episodes; the others are numbered anew. Kept frames stay as they
are, byte by byte: packets of videos are copied, not encoded again.

{PLACE_HELP}"""
_SPLIT = """\
proctor data split DATASET --splits='{train: 0.8, val: 0.2}' [--output=DIR]

Makes a dataset for each name: of a share of the episodes (in order; where the shares are all, the
last takes the rest), or of the episodes of a list ('{train: [0, 1], val: [2]}').

  --output=DIR (or --new_root=DIR)
      the folder for all of them: DIR/train, DIR/val (default: DATASET_train, DATASET_val)
"""
_MERGE = """\
proctor data merge DATASET DATASET [...] --output=DIR

Makes one dataset of the episodes of several, in this order. They must agree in fps, robot and
features; tasks with the same words are one.

  --output=DIR (or --new_root=DIR)
      the folder of the result, which must not exist
"""
_RENAME = f"""\
proctor data rename-feature DATASET OLD NEW (--output=DIR | --in_place)

Gives a feature another name, in tables, videos and statistics.

{PLACE_HELP}"""
_REMOVE = f"""\
proctor data remove-feature DATASET FEATURE [...] (--output=DIR | --in_place)

Makes the dataset without these features: columns, videos, statistics.

{PLACE_HELP}"""
_SET_TASK = f"""\
proctor data set-task DATASET --task="put the cup down" [--episodes=0,3,5-9]
                      (--output=DIR | --in_place)
proctor data set-task DATASET --tasks='{{"0": "put the cup down"}}' (--output=DIR | --in_place)

Says in other words what episodes show; tasks that no episode has any more are left out.

  --task=text
      the task of the episodes named, or of all
  --episodes=0,3,5-9
      which episodes (default: all)
  --tasks=map
      the task of each of some episodes; with --task, that one is everybody else's
{PLACE_HELP}"""
_CONVERT = f"""\
proctor data convert DATASET (--output=DIR | --in_place)

Makes a dataset of version 3.0 of one of version 2.1 or 2.0: many episodes a file instead of one,
packets of videos copied. Statistics that are missing are worked out.

{PLACE_HELP}"""


def delete(words: list[str]) -> int:
    """Run ``proctor data delete`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("delete", _DELETE, words, ("episodes", *PLACE_FLAGS))
    if given is None:
        return 0
    episodes = parse_episodes(given.needed("episodes", "0,3,5-9"))
    return run_edit(given, lambda source: operations.delete(source, episodes))


def run_edit(given: ParsedArgs, make: Callable[[SourceDataset], EditPlan]) -> int:
    """Edit the dataset that is named, to where it is said; return the exit code."""
    from proctor.datasets.edit.build import edit

    root = given.dataset()
    print_result(edit(root, given.place(root), make))
    return 0


def split(words: list[str]) -> int:
    """Run ``proctor data split`` and return its exit code."""
    from proctor.config.flags import path_of

    given = parse_args("split", _SPLIT, words, ("splits", "output", "new_root"))
    if given is None:
        return 0
    example = "{train: 0.8, val: 0.2}"
    splits = parse_mapping("splits", given.needed("splits", f"'{example}'"), example)
    root = given.dataset()
    base = given.flags.get("output", given.flags.get("new_root"))
    for built in split_into(root, splits, None if base is None else path_of(base)).values():
        print_result(built)
    return 0


def split_into(root: Path, splits: dict[str, Any], base: Path | None) -> dict[str, BuiltDataset]:
    """Make all datasets of a split, in ``base`` or beside ``root``, or none of them."""
    from proctor.datasets.edit import operations
    from proctor.datasets.edit.build import build
    from proctor.datasets.edit.destination import new_destination
    from proctor.datasets.edit.edit_plan import open_source

    for name, share in splits.items():
        _check_split(name, share)
    recipes = operations.split(open_source(root), splits)
    beside = root.resolve()
    places = {
        name: new_destination(base / name if base else beside.with_name(f"{beside.name}_{name}"))
        for name in recipes
    }
    built: dict[str, BuiltDataset] = {}
    try:
        for name, edit_plan in recipes.items():
            built[name] = build(edit_plan, places[name])
    except BaseException:  # all or none: the first ones would stand in the way of the next try
        for made in built.values():
            shutil.rmtree(made.root, ignore_errors=True)
        raise
    return built


def _check_split(name: str, share: Any) -> None:
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    is_list = isinstance(share, list) and all(type(episode) is int for episode in share)
    if not is_number and not is_list:
        raise UsageError(f"split {name!r} is a share (0.8) or a list of episodes ([0, 1])")
    if not name or "/" in name or name in (".", ".."):
        raise UsageError(f"{name!r} is no name of a split: it is a folder's name too")


def merge(words: list[str]) -> int:
    """Run ``proctor data merge`` and return its exit code."""
    from proctor.config.flags import path_of

    given = parse_args("merge", _MERGE, words, ("output", "new_root"))
    if given is None:
        return 0
    output = given.flags.get("output", given.flags.get("new_root"))
    if output is None:
        raise UsageError("merge needs --output=DIR, the folder of the result")
    print_result(merge_into([find_dataset(name) for name in given.positional], path_of(output)))
    return 0


def merge_into(roots: list[Path], output: Path) -> BuiltDataset:
    """Make one dataset of several."""
    from proctor.datasets.edit import operations
    from proctor.datasets.edit.build import build
    from proctor.datasets.edit.destination import new_destination
    from proctor.datasets.edit.edit_plan import open_source

    place = new_destination(output)
    return build(operations.merge([open_source(root) for root in roots]), place)


def rename_feature(words: list[str]) -> int:
    """Run ``proctor data rename-feature`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("rename-feature", _RENAME, words, PLACE_FLAGS)
    if given is None:
        return 0
    if len(given.positional) != 3:
        raise UsageError("rename-feature takes a dataset, the old name and the new one")
    name, old, new = given.positional
    one = ParsedArgs(given.verb, [name], given.flags)
    return run_edit(one, lambda source: operations.rename_feature(source, old, new))


def remove_feature(words: list[str]) -> int:
    """Run ``proctor data remove-feature`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("remove-feature", _REMOVE, words, PLACE_FLAGS)
    if given is None:
        return 0
    if len(given.positional) < 2:
        raise UsageError("remove-feature takes a dataset and the features to remove")
    keys = given.positional[1:]
    one = ParsedArgs(given.verb, given.positional[:1], given.flags)
    return run_edit(one, lambda source: operations.remove_features(source, keys))


def set_task(words: list[str]) -> int:
    """Run ``proctor data set-task`` and return its exit code."""
    given = parse_args("set-task", _SET_TASK, words, ("task", "episodes", "tasks", *PLACE_FLAGS))
    if given is None:
        return 0
    task, tasks = given.flags.get("task"), given.flags.get("tasks")
    if task is None and tasks is None:
        raise UsageError('set-task needs --task=TEXT, or --tasks=\'{"0": "TEXT"}\'')
    chosen = parse_episodes(given.flags["episodes"]) if "episodes" in given.flags else None
    of_some = parse_mapping("tasks", tasks, '{"0": "lift the cup"}') if tasks is not None else {}
    return run_edit(given, lambda source: plan_set_tasks(source, task, chosen, of_some))


def plan_set_tasks(
    source: SourceDataset, task: str | None, episodes: list[int] | None, of_some: dict[str, Any]
) -> EditPlan:
    """Return the recipe of set-task.

    Raises:
        UsageError: an episode is none, or a task is no text.
    """
    from proctor.datasets.edit import operations

    everybody = range(len(source.rows)) if episodes is None else episodes
    new = {} if task is None else dict.fromkeys(everybody, task)
    for episode, words in of_some.items():
        if not episode.isdecimal() or not isinstance(words, str):
            raise UsageError(f"--tasks: {episode}: {words!r} is not the text of an episode")
        new[int(episode)] = words
    return operations.set_tasks(source, new)


def convert(words: list[str]) -> int:
    """Run ``proctor data convert`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("convert", _CONVERT, words, PLACE_FLAGS)
    return 0 if given is None else run_edit(given, operations.convert)
