"""Help of commands with plug-ins: the most used flags, one part, one plug-in, all, or a search."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.config.base import Config, plugin_sections
from proctor.config.builder import (
    aliased_flags,
    find_plugin,
    get_setting,
    known_types,
    own_flags,
    plugin_flags,
)
from proctor.config.flags.help_lines import (
    VARIES,
    WIDTH,
    group_flags,
    grouped_lines,
    short_lines,
    two_columns,
)
from proctor.config.flags.help_search import OwnedFlag, owned_lines, search_help
from proctor.config.flags.parsing import Flag, flags_of
from proctor.parsing import inner_type

_NAME_WIDTH, _MORE_WIDTH = 33, 38
_TITLES = {
    "policies": "Policy",
    "benchmarks": "Benchmark",
    "robots": "Robot",
    "teleoperators": "Teleoperator",
}
_CONFIG_PATH = Flag(
    "config_path",
    Path,
    VARIES,
    "YAML or JSON file with the same settings, nested; flags take precedence",
    group="Run folder",
)


def help_text(
    cls: type[Config],
    command: str,
    topic: Sequence[str],
    given: Mapping[str, str],
    width: int = WIDTH,
) -> str:
    """Return the text of ``proctor COMMAND --help TOPIC ...``.

    A topic is ``all``, a section (``video``), a plug-in (``act``, ``policy act``), or words to
    search for. Without a topic: the most used flags, and the flags of the plug-ins that ``given``
    names.
    """
    if not topic:
        return _first_level(cls, command, given, width)
    name, *rest = topic
    sections = plugin_sections(cls)
    if topic == ["all"]:
        return f"All flags of proctor {command}\n{flags_help(cls, given, width)}"
    if name in sections and not rest:
        return _names_help(command, name, sections[name].kind, width)
    for section in [name] if name in sections and len(rest) == 1 else sections:
        plugin = topic[-1]
        if (len(topic) == 1 or section == name) and _is_plugin(cls, section, plugin):
            path = get_setting(section, "path", given)
            return "\n".join([*_plugin_lines(cls, section, plugin, path, width), ""])
    known = all_flags(cls, given)
    own = [one for one in known if not one.owner and one.flag.name.startswith(f"{name}.")]
    if own and not rest:
        return "\n".join([f"--{name}.*", *grouped_lines([one.flag for one in own], width), ""])
    return search_help(f"proctor {command}", known, topic, width, _all_plugins(cls))


def _is_plugin(cls: type[Config], section: str, name: str) -> bool:
    kind = plugin_sections(cls)[section].kind
    return ":" in name or plugins.is_known(kind, name, cls.use)


def _first_level(cls: type[Config], command: str, given: Mapping[str, str], width: int) -> str:
    chosen = dict(_chosen_plugins(cls, given))
    lines = ["The most used flags"]
    for heading, flags in group_flags(_first_flags(cls, chosen)).items():
        lines += ["", heading, *short_lines(flags, _NAME_WIDTH, width)]
    for section, name in chosen.items():
        path = get_setting(section, "path", given)
        lines += ["", *_plugin_lines(cls, section, name, path, width)]
    more = f"  proctor {command} --help"
    lines += ["", "More help"]
    for words, text in _topics(cls).items():
        lines += two_columns(f"{more} {words}", text, _MORE_WIDTH, width)
    listed = "benchmarks, tasks, policies, robots, teleoperators and cameras"
    lines += two_columns("  proctor list", listed, _MORE_WIDTH, width)
    return "\n".join([*lines, ""])


def _topics(cls: type[Config]) -> dict[str, str]:
    """Return the words that may follow ``--help``, with what they print."""
    found = {"WORD ...": "search in flags and their texts", "all": "every flag"}
    for section, marked in plugin_sections(cls).items():
        names = ", ".join(known_types(cls, marked))
        found[f"{section} NAME"] = f"flags of {names}"
    own = [*own_flags(cls), *cls.more_flags()]
    parts = dict.fromkeys(f.name.partition(".")[0] for f in own if "." in f.name)
    return found | ({"PART": f"flags of {', '.join(parts)}"} if parts else {})


def _chosen_plugins(cls: type[Config], given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield every section with the plug-in that the flags choose; a path chooses ``pretrained``."""
    for section, marked in plugin_sections(cls).items():
        path, name = get_setting(section, "path", given), get_setting(section, "type", given)
        if path and marked.type_of_path is not None and name in ("", marked.type_of_path):
            yield section, marked.type_of_path
        elif name:
            yield section, name


def _first_flags(cls: type[Config], chosen: Mapping[str, str]) -> list[Flag]:
    """Return the most used flags, as the chosen plug-ins define them.

    Without a chosen plug-in, a flag is described by the common base class or by the first plug-in
    that has it, and has no default, because each plug-in has its own. Plug-ins are imported until
    all flags are found.
    """
    wanted = cls.first.split()
    known = {flag.name: flag for flag in [*own_flags(cls), _CONFIG_PATH]}
    hints = typing.get_type_hints(cls)
    for section, marked in plugin_sections(cls).items():
        title = _TITLES[marked.kind]
        known[f"{section}.type"] = _type_flag(cls, section)
        if section in chosen:
            flags = iter(list(plugin_flags(cls, section, chosen[section])))
        else:
            flags = _flags_of_any(cls, section, inner_type(hints[section]))
        mine = {name for name in wanted if name.startswith(f"{section}.") or "." not in name}
        while not mine <= known.keys() and (flag := next(flags, None)) is not None:
            for name in {flag.name, flag.alias or flag.name} & mine - known.keys():
                known[name] = dataclasses.replace(flag, name=name, group=title)
    return [known[name] for name in wanted if name in known]


def _type_flag(cls: type[Config], section: str) -> Flag:
    marked = plugin_sections(cls)[section]
    names = ", ".join(known_types(cls, marked))
    text = names if marked.only else f"one of {names}, or package.module:NAME"
    return Flag(f"{section}.type", str, VARIES, text, group=_TITLES[marked.kind])


def _flags_of_any(cls: type[Config], section: str, base: type[Any]) -> Iterator[Flag]:
    """Yield the flags of a section's base class, then those of every plug-in, without defaults."""
    for flag in flags_of(base, f"{section}.", use=cls.use):
        yield dataclasses.replace(flag, default=VARIES)
    of_path = plugin_sections(cls)[section].type_of_path
    for name in (of_path, None) if of_path else (None,):  # None: all plug-ins
        for flag in plugin_flags(cls, section, name):
            yield dataclasses.replace(flag, default=VARIES)


def _names_help(command: str, section: str, kind: str, width: int) -> str:
    lines = [f"--{section}.type=NAME, and its flags: proctor {command} --help {section} NAME", ""]
    for name in plugins.known_plugins(kind):
        lines += two_columns(f"  {name}", find_plugin(kind, name).summary, 16, width)
    return "\n".join(lines) + "\n"


def _plugin_lines(
    cls: type[Config], section: str, name: str, path: str = "", width: int = WIDTH
) -> list[str]:
    """Return the flags of a plug-in; with a checkpoint ``path``, also those of its policy."""
    kind = plugin_sections(cls)[section].kind
    lines = [f"--{section}.type={name}: {find_plugin(kind, name).summary}"]
    flags = [f for f in plugin_flags(cls, section, name) if f.name != f"{section}.type"]
    if not path or name != plugin_sections(cls)[section].type_of_path:
        return [*lines, *grouped_lines(flags, width)]
    from proctor.policies.lerobot.checkpoint.location import read_config_json  # imports numpy

    stated = read_config_json(path)
    family = str(stated.get("type") or "")
    lines = [f"--{section}.path={path}: {family or 'a policy that does not state its type'}"]
    lines += grouped_lines([flag for flag in flags if not flag.name.endswith(".overrides")], width)
    if family:
        known = {flag.name for flag in flags} | {f"{section}.type"}
        own = (f for f in plugin_flags(cls, section, family) if f.name not in known)
        lines += ["", f"Flags of this checkpoint ({family}), with its values as defaults"]
        lines += grouped_lines([_as_stated(f, stated) for f in own], width)
    return lines


def _as_stated(flag: Flag, stated: Mapping[str, Any]) -> Flag:
    """Return the flag with the checkpoint's value as its default."""
    name = flag.name.rpartition(".")[2]
    if name not in stated or stated[name] == flag.default:
        return flag
    return dataclasses.replace(flag, default=stated[name], default_help="")


def flags_help(cls: type[Config], given: Mapping[str, str], width: int = WIDTH) -> str:
    """Return the help of all flags; of plug-ins, only the chosen ones if any is chosen."""
    return "\n".join([*owned_lines(all_flags(cls, given), width, _all_plugins(cls)), ""])


def _all_plugins(cls: type[Config]) -> dict[str, list[str]]:
    """Return the names of all plug-ins by the title of their section.

    The type of a checkpoint is left out: it has the flags of the checkpoint's policy.
    """
    return {
        _TITLES[marked.kind]: [
            name for name in known_types(cls, marked) if name != marked.type_of_path
        ]
        for marked in plugin_sections(cls).values()
    }


def all_flags(cls: type[Config], given: Mapping[str, str]) -> list[OwnedFlag]:
    """List the flags of a command, and those of its plug-ins or of the chosen ones."""
    own = [_type_flag(cls, section) for section in plugin_sections(cls)]
    own += [*own_flags(cls), *cls.more_flags(), _CONFIG_PATH]
    for flag in aliased_flags(cls):
        kind = plugin_sections(cls)[flag.name.partition(".")[0]].kind
        text = flag.alias_help or flag.help
        alias = dataclasses.replace(flag, name=str(flag.alias), help=text, group=_TITLES[kind])
        own.append(alias)
    found = [
        OwnedFlag(flag, flag.group) for members in group_flags(own).values() for flag in members
    ]
    chosen = dict(_chosen_plugins(cls, given))
    for section, marked in plugin_sections(cls).items():
        title = _TITLES[marked.kind]
        known = dict.fromkeys([*known_types(cls, marked), marked.type_of_path])
        names = [chosen[section]] if section in chosen else [name for name in known if name]
        found += [
            OwnedFlag(flag, f"{title}: {flag.group}", name)
            for name in names
            for flag in plugin_flags(cls, section, name)
            if flag.name != f"{section}.type"
        ]
    return found
