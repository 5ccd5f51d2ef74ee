"""Help of commands with plug-ins, in levels: the most used flags, one part, or all flags."""

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
    own_flags,
    plugin_flags,
)
from proctor.config.flags import Flag, flags_of
from proctor.config.help_lines import default_text, flag_usage, help_lines, two_columns
from proctor.errors import UsageError, did_you_mean
from proctor.parsing import inner_type
from proctor.policies.lerobot.location import read_config_json

_NAME_WIDTH, _MORE_WIDTH = 31, 38
_CONFIG_PATH = Flag("config_path", Path, None, "YAML or JSON file with the same settings, nested")


def help_text(
    cls: type[Config], command: str, topic: Sequence[str], given: Mapping[str, str]
) -> str:
    """Return the text of ``proctor COMMAND --help TOPIC ...``.

    Without a topic: the most used flags, and the flags of the plug-ins that ``given`` names.

    Raises:
        UsageError: there is no such topic.
    """
    if not topic:
        return _first_level(cls, command, given)
    name, *rest = topic
    sections = plugin_sections(cls)
    if name == "all" and not rest:
        return f"All flags of proctor {command}:\n{flags_help(cls, given)}"
    if name in sections and len(rest) <= 1:
        kind = sections[name].kind
        return _plugin_help(cls, name, rest[0]) if rest else _names_help(command, name, kind)
    own = [flag for flag in own_flags(cls) if flag.name.startswith(f"{name}.")]
    if own and not rest:
        return "\n".join([f"--{name}.*", *help_lines(own)]) + "\n"
    choice = ", ".join(["all", *(f"{section} NAME" for section in sections), *_own_sections(cls)])
    raise UsageError(
        f"--help {' '.join(topic)}: there is no such topic (choose {choice})",
        code="help.unknown-topic",
    )


def _first_level(cls: type[Config], command: str, given: Mapping[str, str]) -> str:
    chosen = dict(_chosen_plugins(cls, given))
    lines = ["The most used flags:", *_short_lines(_first_flags(cls, chosen))]
    for section, name in chosen.items():
        lines += ["", *_plugin_lines(cls, section, name, get_setting(section, "path", given))]
    more = f"  proctor {command} --help"
    lines += ["", *two_columns(f"{more} all", "every flag", _MORE_WIDTH)]
    for section, marked in plugin_sections(cls).items():
        names = ", ".join(plugins.known_plugins(marked.kind, cls.use))
        lines += two_columns(f"{more} {section} NAME", f"of {names}", _MORE_WIDTH)
    parts = ", ".join(_own_sections(cls))
    if parts:
        lines += two_columns(f"{more} PART", f"of {parts}", _MORE_WIDTH)
    lines += two_columns("  proctor list", "benchmarks, tasks and policies", _MORE_WIDTH)
    return "\n".join([*lines, ""])


def _own_sections(cls: type[Config]) -> list[str]:
    return list(dict.fromkeys(f.name.partition(".")[0] for f in own_flags(cls) if "." in f.name))


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
    that has it, and has no default, because each plug-in has its own.
    """
    known = {flag.name: flag for flag in [*own_flags(cls), _CONFIG_PATH]}
    hints = typing.get_type_hints(cls)
    for section, marked in plugin_sections(cls).items():
        if section in chosen:
            found = list(plugin_flags(cls, section, chosen[section]))
        else:
            flags = flags_of(inner_type(hints[section]), f"{section}.", use=cls.use)
            flags += plugin_flags(cls, section)
            found = [dataclasses.replace(flag, default=None) for flag in flags]
        for flag in found:
            known.setdefault(flag.name, flag)
        names = ", ".join(plugins.known_plugins(marked.kind, cls.use))
        what = Flag(f"{section}.type", str, None, f"one of {names}, or package.module:NAME")
        known[what.name] = what
    for flag in aliased_flags(cls):
        known.setdefault(str(flag.alias), dataclasses.replace(flag, name=str(flag.alias)))
    return [known[name] for name in cls.first.split() if name in known]


def _names_help(command: str, section: str, kind: str) -> str:
    lines = [f"--{section}.type=NAME, and its flags: proctor {command} --help {section} NAME", ""]
    for name in plugins.known_plugins(kind):
        lines += two_columns(f"  {name}", find_plugin(kind, name).summary, 16)
    return "\n".join(lines) + "\n"


def _plugin_help(cls: type[Config], section: str, name: str) -> str:
    kind = plugin_sections(cls)[section].kind
    if ":" not in name and name not in plugins.known_plugins(kind):
        names = plugins.known_plugins(kind)
        hint = did_you_mean(name, names) or f" (choose from: {', '.join(names)})"
        raise UsageError(
            f"--help {section} {name}: there is no such {section}{hint}", code="help.unknown-topic"
        )
    return "\n".join(_plugin_lines(cls, section, name)) + "\n"


def _plugin_lines(cls: type[Config], section: str, name: str, path: str = "") -> list[str]:
    """Return the flags of a plug-in; with a checkpoint ``path``, also those of its policy."""
    kind = plugin_sections(cls)[section].kind
    lines = [f"--{section}.type={name}: {find_plugin(kind, name).summary}"]
    flags = [f for f in plugin_flags(cls, section, name) if f.name != f"{section}.type"]
    if not path or name != plugin_sections(cls)[section].type_of_path:
        return [*lines, *help_lines(flags)]
    stated = read_config_json(path)
    family = str(stated.get("type") or "")
    lines = [f"--{section}.path={path}: {family or 'a policy that does not state its type'}"]
    lines += help_lines([flag for flag in flags if not flag.name.endswith(".overrides")])
    if family:
        known = {flag.name for flag in flags} | {f"{section}.type"}
        own = (f for f in plugin_flags(cls, section, family) if f.name not in known)
        lines += ["  of this checkpoint:", *help_lines([_as_stated(f, stated) for f in own])]
    return lines


def _as_stated(flag: Flag, stated: Mapping[str, Any]) -> Flag:
    """Return the flag with the checkpoint's value as its default."""
    name = flag.name.rpartition(".")[2]
    return dataclasses.replace(flag, default=stated[name]) if name in stated else flag


def flags_help(cls: type[Config], given: Mapping[str, str]) -> str:
    """Return the help of all flags; of plug-ins, only the chosen ones if any is chosen."""
    lines = [*help_lines(own_flags(cls)), *_alias_lines(aliased_flags(cls))]
    lines += help_lines([dataclasses.replace(_CONFIG_PATH, help=f"{_CONFIG_PATH.help}; flags win")])
    for section, marked in reversed(plugin_sections(cls).items()):
        chosen = given.get(f"{section}.type")
        for name in [chosen] if chosen else plugins.known_plugins(marked.kind, cls.use):
            lines += ["", *_plugin_lines(cls, section, name)]
    return "\n".join(lines) + "\n"


def _short_lines(flags: list[Flag]) -> list[str]:
    """Return one line per flag where it fits: its name beside its meaning."""
    lines = []
    for flag in flags:
        unset = flag.is_switch or flag.default in (None, "")
        said = flag.help + ("" if unset else default_text(flag))
        lines += two_columns(f"  {flag_usage(flag)}", said, _NAME_WIDTH)
    return lines


def _alias_lines(flags: list[Flag]) -> list[str]:
    lines = []
    for flag in flags:
        usage = flag_usage(dataclasses.replace(flag, name=str(flag.alias)))
        lines += [f"  {usage}", f"      {flag.alias_help}"]
    return lines
