"""What the verbs of ``proctor data`` have in common: their words, their datasets, their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.errors import UsageError, strip_control_codes

if TYPE_CHECKING:
    from proctor.datasets.edit.build import BuiltDataset
    from proctor.datasets.edit.destination import Destination

PLACE_FLAGS = ("output", "new_root", "in_place")
PLACE_HELP = """\
  --output=DIR (or --new_root=DIR)
      the folder of the result, which must not exist; the dataset itself is left alone
  --in_place
      replace the dataset, in one step at the end: a kill before leaves it as it was
"""
_MOST_EPISODES = 10_000_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True)
class ParsedArgs:
    """The words of one call."""

    verb: str
    positional: Sequence[str]
    flags: Mapping[str, str]

    def dataset(self) -> Path:
        """Return the folder of the only dataset that is named.

        Raises:
            UsageError: none is, or more, or it is not there.
        """
        if len(self.positional) != 1:
            raise UsageError(
                f"{self.verb} takes one dataset, got {len(self.positional)}: a folder, or the id "
                f"of one that lies on this machine (proctor data {self.verb} --help)"
            )
        return find_dataset(self.positional[0])

    def place(self, root: Path) -> Destination:
        """Return where the result goes.

        Raises:
            UsageError: nowhere, to two places, or where something is.
        """
        from proctor.config.flags import path_of
        from proctor.datasets.edit.destination import in_place_destination, new_destination

        outputs = [self.flags[name] for name in ("output", "new_root") if name in self.flags]
        if len(outputs) + self.switch("in_place") != 1:
            raise UsageError(
                f"where does the result of {self.verb} go? Give --output=DIR for a new dataset, or "
                "--in_place to replace this one"
            )
        return new_destination(path_of(outputs[0])) if outputs else in_place_destination(root)

    def switch(self, name: str) -> bool:
        """Return whether a flag without a value is given.

        Raises:
            UsageError: it has another value than true or false.
        """
        value = self.flags.get(name, "false").lower()
        if value not in ("true", "false"):
            raise UsageError(f"--{name} is true or false, not {value!r}")
        return value == "true"

    def needed(self, name: str, example: str) -> str:
        """Return the value of a flag.

        Raises:
            UsageError: it is not given.
        """
        if name not in self.flags:
            raise UsageError(f"{self.verb} needs --{name} (such as --{name}={example})")
        return self.flags[name]


def parse_args(
    verb: str, usage: str, words: list[str], flags: Sequence[str], switches: Sequence[str] = ()
) -> ParsedArgs | None:
    """Return the words of a verb; None, with its usage printed, for ``--help``.

    Raises:
        UsageError: a flag is unknown, given twice or without its value.
    """
    from proctor.config.flags import check_known, split_argv

    positional, given = split_argv(words, {"help", "in_place", *switches})
    check_known(given, [], ["help", *flags, *switches])
    if "help" in given:
        print(usage, end="")
        return None
    return ParsedArgs(verb, positional, given)


def find_dataset(name: str) -> Path:
    """Return the folder of a dataset: ``name`` itself, or an id's among LeRobot's datasets.

    Raises:
        UsageError: there is none.
    """
    from proctor.config.flags import path_of
    from proctor.datasets.source import lerobot_home
    from proctor.system.hub import HUB_ID

    path = path_of(name)
    if path.is_dir():
        return path
    if not HUB_ID.fullmatch(name):
        raise UsageError(f"{name}: no such folder")
    root = lerobot_home() / name
    if not root.is_dir():
        raise UsageError(
            f"{name} is no folder, and no dataset in {lerobot_home()} either; "
            f"proctor data pull {name} downloads it"
        )
    return root


def parse_episodes(text: str) -> list[int]:
    """Return the episodes that ``0,3,5-9`` or ``[0, 3]`` names.

    Raises:
        UsageError: it names none.
    """
    inner = text.strip().removeprefix("[").removesuffix("]")
    found: list[int] = []
    for word in (word.strip() for word in inner.split(",") if word.strip()):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise UsageError(
                f"{strip_control_codes(word, 60)!r} is no episode; write them like 0,3,5-9"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _MOST_EPISODES:
            raise UsageError(f"{word!r} is no range of episodes: the first comes first")
        found += range(first, last + 1)
    if not found:
        raise UsageError("no episode is named; write them like 0,3,5-9")
    return found


def parse_names(text: str) -> list[str]:
    """Return the names that ``a,b`` or ``['a', 'b']`` lists."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    return [name.strip(" '\"") for name in inner.split(",") if name.strip()]


def parse_mapping(flag: str, text: str, example: str) -> dict[str, Any]:
    """Return the map that a flag's value is.

    Raises:
        UsageError: it is none.
    """
    from proctor.parsing import parse_flow

    try:
        found = parse_flow(text)
    except ValueError as bad:
        raise UsageError(f"--{flag}: {bad}; write it like '{example}'") from None
    if not isinstance(found, dict) or not found:
        raise UsageError(f"--{flag} is a map; write it like '{example}'")
    return {str(key): value for key, value in found.items()}


def print_result(built: BuiltDataset) -> None:
    """Print what was made."""
    info = built.info
    counted = [
        f"{n:,} {word}{'' if n == 1 else 's'}"
        for n, word in (
            (info.total_episodes, "episode"),
            (info.total_frames, "frame"),
            (info.total_tasks, "task"),
        )
    ]
    print(strip_control_codes(f"{built.root}: {', '.join(counted)}"))
    for key, episodes in built.again.items():
        named = ", ".join(map(str, episodes[:10])) + (" ..." if len(episodes) > 10 else "")
        print(
            strip_control_codes(
                f"{key}: episodes {named} could not be copied (they do not begin at a key frame): "
                "these were encoded again"
            )
        )
