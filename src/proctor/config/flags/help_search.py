"""Search in the flags of commands and plug-ins: ``proctor eval --help WORD ...``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from proctor.config.flags.help_lines import WIDTH, default_text, entry, flag_usage
from proctor.config.flags.parsing import Flag
from proctor.errors import UsageError

_DEFAULT = " (default: "
_MOST_NEAR = 3
_LONG_LIST = 4
_WORD = re.compile(r"[a-z][a-z0-9]{2,}")


Owners = Mapping[str, Sequence[str]]
_NO_OWNERS: Owners = MappingProxyType({})


@dataclass(frozen=True)
class OwnedFlag:
    """A flag, the plug-in or command that it belongs to, and its heading in results."""

    flag: Flag
    heading: str
    owner: str = ""
    """Empty: every use of the command has the flag."""


def search_help(
    command: str,
    known: Sequence[OwnedFlag],
    words: Sequence[str],
    width: int = WIDTH,
    everyone: Owners = _NO_OWNERS,
) -> str:
    """Return the flags that contain all ``words``; flags of several plug-ins are listed once.

    ``everyone`` are all possible owners below a heading, see ``owned_lines``.
    """
    found = [one for one in known if all(_contains(one, word) for word in words)]
    said = " ".join(words)
    if not found:
        raise UsageError(
            f"--help {said}: no flag of {command} mentions {_quoted(words)}{_near(known, words)}",
            code="help.unknown-topic",
        )
    count = len({one.flag.name for one in found})
    verb = "flag mentions" if count == 1 else "flags mention"
    lines = [f"{command}: {count} {verb} {_quoted(words)}", *owned_lines(found, width, everyone)]
    return "\n".join([*lines, ""])


def owned_lines(
    found: Iterable[OwnedFlag], width: int = WIDTH, everyone: Owners = _NO_OWNERS
) -> list[str]:
    """Return flags under their headings, each once, with its owners and their defaults.

    ``everyone`` are all possible owners by the first word of a heading: a list of nearly all of
    them is printed as "all but ...".
    """
    headings: dict[str, dict[tuple[str, str], list[OwnedFlag]]] = {}
    for one in found:
        same = headings.setdefault(one.heading, {})
        same.setdefault((one.flag.name, one.flag.help), []).append(one)
    lines: list[str] = []
    for heading, entries in headings.items():
        lines += ["", heading]
        for (_, text), uses in entries.items():
            usage = max((flag_usage(one.flag) for one in uses), key=len)  # a switch may be true
            owners = _owners_text(uses, everyone.get(heading.partition(":")[0], ()))
            lines += entry(usage, f"{text}{owners}", width)
    return lines


def _owners_text(uses: Sequence[OwnedFlag], everyone: Sequence[str]) -> str:
    """Return the default and the owners: " (default: 8) [act, pi0]"."""
    by_default: dict[str, list[str]] = {}
    for one in uses:
        by_default.setdefault(default_text(one.flag), []).append(one.owner)
    if list(by_default.values()) == [[""]]:
        return next(iter(by_default))
    if len(by_default) == 1:
        (default, named), *_ = by_default.items()
        return f"{default} [{_named(named, everyone)}]"
    parts = (
        f"{default.removeprefix(_DEFAULT).strip(' ()') or 'false'} in {', '.join(named)}"
        for default, named in by_default.items()
    )
    return f"{_DEFAULT}{'; '.join(parts)})"


def _named(named: Sequence[str], everyone: Sequence[str]) -> str:
    rest = [name for name in everyone if name not in named]
    if everyone and len(named) > _LONG_LIST and len(rest) <= _LONG_LIST:
        return f"all but {', '.join(rest)}" if rest else "all"
    return ", ".join(named)


def _contains(one: OwnedFlag, word: str) -> bool:
    flag, sought = one.flag, word.lower().lstrip("-")
    if sought == one.owner.lower():
        return True
    names = f"{flag.name} {flag.alias or ''}".replace("-", "_").lower()
    text = f"{flag_usage(flag)} {flag.help} {default_text(flag)} {one.heading}".lower()
    return sought.replace("-", "_") in names or sought in text


def _quoted(words: Sequence[str]) -> str:
    return " and ".join(f"'{word}'" for word in words)


def _near(known: Iterable[OwnedFlag], words: Sequence[str]) -> str:
    """Return "; did you mean chunk, chunk_size?" for the words that no flag contains."""
    known = list(known)
    wrong = [word for word in words if not any(_contains(one, word) for one in known)]
    spoken: dict[str, None] = {}
    for one in known:
        text = f"{one.flag.name} {one.owner} {one.flag.help}".lower()
        spoken |= dict.fromkeys([*re.split(r"[. ]", one.flag.name), *_WORD.findall(text)])
    near = [
        found
        for word in wrong
        for found in difflib.get_close_matches(word.lower()[:100], list(spoken), _MOST_NEAR, 0.6)
    ]
    if near:
        return f"; did you mean {', '.join(near)}?"
    return "" if wrong else " together; give fewer words"
