"""Builds configs from settings; plug-ins define the flags of their sections."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Collection, Container, Iterator, Mapping
from typing import Any, TypeVar

from proctor import plugins
from proctor.benchmarks.base import BenchmarkConfig, BenchmarkPlugin
from proctor.config.base import Config, PluginSection, plugin_sections
from proctor.config.flags.parsing import Flag, check_known, decode, flags_of
from proctor.config.flags.secrets import read_secrets
from proctor.errors import UsageError
from proctor.fingerprint import ConfigUse, flatten
from proctor.lerobot_flags import (
    LerobotFlag,
    absent_benchmarks,
    lerobot_flags,
    split_lerobot_flags,
)
from proctor.parsing import inner_type, parse_text
from proctor.policies.base import PolicyPlugin
from proctor.robots.base import RobotPlugin, TeleoperatorPlugin

Plugin = BenchmarkPlugin | PolicyPlugin | RobotPlugin | TeleoperatorPlugin
ConfigT = TypeVar("ConfigT", bound=Config)
_RENAMED = {"policy.pretrained_revision": "policy.revision"}
"""LeRobot's names of flags, and ours."""
_OF_TRAINING = LerobotFlag(None, "it affects training only")


def build(cls: type[ConfigT], settings: Mapping[str, Any]) -> ConfigT:
    """Build a checked config from settings: nested as in a file, or flat as on the command line."""
    chosen = _chosen(cls, settings)
    classes = {name: None if plugin is None else plugin.config for name, plugin in chosen.items()}
    flags = flags_of(cls, sections=classes, use=cls.use)
    foreign = _foreign(cls, chosen, flags)
    open_fields = _open_fields(chosen)
    maps = {flag.name for flag in flags if flag.container is dict} | foreign.keys()
    values, notes = split_lerobot_flags(_values(cls, settings, flags, (maps, open_fields)), foreign)
    values = _gathered(values, {flag.name for flag in flags}, open_fields)
    check_known(values, {flag.name for flag in flags})
    config = decode(cls, values, sections=classes, use=cls.use)
    read_secrets(config)
    config.validate()
    config.notes = [*notes, *config.unused_notes()]
    return config


def benchmark_config_from(settings: Mapping[str, Any]) -> BenchmarkConfig:
    """Build a checked benchmark config from its own settings, ``{"type": "metaworld", ...}``."""
    config_class = plugins.find_benchmark(str(settings.get("type", ""))).config
    flags = flags_of(config_class, "env.")
    whole = {flag.name for flag in flags if flag.container is dict}
    values = flatten({"env": settings}, lambda name, value: name not in whole)
    check_known(values, {flag.name for flag in flags})
    return decode(config_class, values, "env.")


def find_plugin(kind: str, name: str) -> Plugin:
    """Return the plug-in of ``kind`` called ``name``."""
    if kind == "benchmarks" and name not in plugins.known_plugins(kind):
        instead = absent_benchmarks().get(name)
        if instead is not None:
            raise UsageError(f"--env.type={name} is not there: {instead}", code="env.unavailable")
    found: Plugin = plugins.FINDERS[kind](name)
    return found


def known_types(cls: type[Config], section: PluginSection) -> list[str]:
    """List the types that a command takes in a section."""
    return list(section.only) or plugins.known_plugins(section.kind, cls.use)


def own_flags(cls: type[Config]) -> list[Flag]:
    """List the flags of a config class that do not depend on plug-ins."""
    return flags_of(cls, sections=dict.fromkeys(plugin_sections(cls)), use=cls.use)


def get_setting(section: str, name: str, settings: Mapping[str, Any]) -> str:
    """Return one setting as text, from flat or nested settings; empty if it is not given."""
    nested = settings.get(section)
    inside = nested.get(name, "") if isinstance(nested, Mapping) else ""
    return str(settings.get(f"{section}.{name}", inside) or "")


def _chosen(cls: type[Config], settings: Mapping[str, Any]) -> dict[str, Plugin | None]:
    """Return the plug-in of every section; the benchmark is checked before the policy."""
    found: dict[str, Plugin | None] = {}
    for name, section in reversed(plugin_sections(cls).items()):
        if section.optional and not _is_asked(name, settings):
            found[name] = None
        else:
            given = _type_of(name, section, settings)
            if not given:
                _check_section_names(cls, name, settings)
                names = ", ".join(known_types(cls, section))
                path = "" if section.type_of_path is None else f", or --{name}.path=CHECKPOINT"
                raise UsageError(
                    f"--{name}.type is missing (choose from: {names}){path}", code="flag.missing"
                )
            found[name] = find_plugin(section.kind, given)
    return found


def _check_section_names(cls: type[Config], section: str, settings: Mapping[str, Any]) -> None:
    """Refuse a misspelt type of a section, as ``--polcy.type`` or ``--policy.typ``."""
    known = {flag.name.partition(".")[0] for flag in own_flags(cls)} | plugin_sections(cls).keys()
    for name in settings:
        given, dot, field = str(name).partition(".")
        is_close = not field.endswith("type") and difflib.get_close_matches(field, ["type"])
        if given == section and is_close:  # dtype is a flag of its own
            raise UsageError(
                f"unknown flag --{name}; did you mean --{section}.type?", code="flag.unknown"
            )
        if given not in known and dot and difflib.get_close_matches(given, [section]):
            raise UsageError(
                f"unknown flag --{name}; did you mean --{section}.{field}?", code="flag.unknown"
            )


def _is_asked(section: str, settings: Mapping[str, Any]) -> bool:
    return any(
        (name == section and value is not None) or name.startswith(f"{section}.")
        for name, value in settings.items()
    )


def _type_of(name: str, section: PluginSection, settings: Mapping[str, Any]) -> str:
    """Return a section's type: the given one, or the type of a section with a path."""
    given = get_setting(name, "type", settings)
    if section.type_of_path is None or not get_setting(name, "path", settings):
        return given
    if given not in ("", section.type_of_path):
        raise UsageError(
            f"--{name}.path states the {name}'s type itself; leave out --{name}.type={given}",
            code="flag.conflict",
        )
    return section.type_of_path


def _open_fields(chosen: Mapping[str, Plugin | None]) -> dict[str, str]:
    """Return the sections that accept unknown flags, and the field that collects these."""
    return {
        name: f"{name}.{plugin.open_field}"
        for name, plugin in chosen.items()
        if isinstance(plugin, PolicyPlugin) and plugin.open_field is not None
    }


def _foreign(
    cls: type[Config], chosen: Mapping[str, Plugin | None], flags: Collection[Flag]
) -> dict[str, LerobotFlag]:
    """Return LeRobot's flags that are not in ``flags``: common ones and those of the plug-ins."""
    found = lerobot_flags(*cls.foreign)
    for section, plugin in chosen.items():
        if isinstance(plugin, BenchmarkPlugin):
            found |= {f"{section}.{name}": said for name, said in plugin.lerobot_flags.items()}
        elif isinstance(plugin, PolicyPlugin) and cls.use is ConfigUse.EVALUATION:
            trained = flags_of(plugin.config, f"{section}.", use=ConfigUse.TRAINING)
            found |= {flag.name: _OF_TRAINING for flag in trained if flag.name not in found}
    for flag in flags:
        found.pop(flag.name, None)
    return found


def _values(
    cls: type[Config],
    settings: Mapping[str, Any],
    flags: Collection[Flag],
    whole: tuple[Container[str], Container[str]],
) -> dict[str, Any]:
    """Return the settings by dotted name, with aliases replaced by the flags they stand for.

    ``whole`` names the flags that are maps, and the sections whose maps are values: these are not
    flattened.
    """
    maps, open_sections = whole
    known = {flag.name for flag in flags}
    sections = {name.partition(".")[0] for name in known} | plugin_sections(cls).keys()
    aliases: dict[str, str] = {}
    if any("." not in str(name) and name not in known | sections for name in settings):
        aliases = {str(flag.alias): flag.name for flag in aliased_flags(cls)}

    def is_section(name: str, value: Mapping[str, Any]) -> bool:
        section, dot, _ = name.partition(".")
        return name not in maps and not (dot and section in open_sections)

    for name in settings.keys() & aliases.keys():
        meant = aliases[name]
        section = meant.partition(".")[0]
        if meant not in known and meant not in maps and section not in open_sections:
            raise UsageError(
                f"--{name}: the chosen {section} has no such flag", code="flag.not-applicable"
            )
    left_out = {name for name in plugin_sections(cls) if settings.get(name) is None}
    rest = {n: value for n, value in settings.items() if n not in aliases and n not in left_out}
    values = flatten(rest, is_section)
    values |= {aliases[name]: value for name, value in settings.items() if name in aliases}
    renamed = {old: new for old, new in _RENAMED.items() if old in values and new in known}
    return {renamed.get(name, name): value for name, value in values.items()}


def _gathered(
    values: dict[str, Any], known: Container[str], open_fields: Mapping[str, str]
) -> dict[str, Any]:
    """Move the unknown flags of a section into the field that collects them."""
    values = dict(values)
    for section, into in open_fields.items():
        others = [n for n in values if n.startswith(f"{section}.") and n not in known]
        if others:
            found = {name.removeprefix(f"{section}."): values.pop(name) for name in others}
            values[into] = _map_of(into, values.get(into)) | found
    return values


def _map_of(name: str, given: Any) -> dict[str, Any]:
    """Return a flag's map, which may be given as text."""
    try:
        read = parse_text(dict[str, Any], given) if isinstance(given, str) else given
    except ValueError as bad:
        raise UsageError(
            f"--{name}: {given!r} is not valid YAML or JSON ({bad})", code="flag.invalid-value"
        ) from None
    if not isinstance(read, Mapping | None):
        raise UsageError(f"--{name}: {given!r} is not a map", code="flag.invalid-value")
    return dict(read or {})


def aliased_flags(cls: type[Config]) -> list[Flag]:
    """List the flags of the built-in plug-ins that have an alias, each alias once."""
    flags = (flag for name in plugin_sections(cls) for flag in plugin_flags(cls, name))
    named = {flag.alias: flag for flag in flags if flag.alias is not None}
    return list(named.values())


def plugin_flags(cls: type[Config], section: str, name: str | None = None) -> Iterator[Flag]:
    """Yield the flags of a section: of the plug-in ``name``, or of all built-in plug-ins."""
    kind = plugin_sections(cls)[section].kind
    for known in plugins.BUILT_IN[kind] if name is None else [name]:
        yield from flags_of(find_plugin(kind, known).config, f"{section}.", use=cls.use)


class BooleanFlags:
    """The boolean flags of a config, which may be given without a value.

    A plug-in is imported only for a flag that the config itself lacks: first the plug-ins that
    ``words`` name, then all built-in ones, because a config file may name any.
    """

    def __init__(self, cls: type[Config], words: list[str]) -> None:
        self._cls = cls
        self._words = words

    def __contains__(self, name: object) -> bool:
        if name == "help":
            return True
        for flags in self._own_flags, self._named_flags, self._built_in_flags:
            for flag in flags():
                if name in (flag.name, flag.alias):
                    return flag.is_switch
        return False

    def __iter__(self) -> Iterator[str]:
        return (flag.name for flag in self._own_flags() if flag.is_switch)

    def _own_flags(self) -> list[Flag]:
        hints = typing.get_type_hints(self._cls)
        declared = {name: inner_type(hints[name]) for name in plugin_sections(self._cls)}
        return flags_of(self._cls, sections=declared, use=self._cls.use)

    def _named_flags(self) -> Iterator[Flag]:
        for section in plugin_sections(self._cls):
            named = self._value_of(f"--{section}.type") or ""
            for name in filter(None, named.strip("[]").split(",")):
                yield from plugin_flags(self._cls, section, name.strip())

    def _built_in_flags(self) -> Iterator[Flag]:
        for section in plugin_sections(self._cls):
            yield from plugin_flags(self._cls, section)

    def _value_of(self, flag: str) -> str | None:
        for word, after in zip(self._words, [*self._words[1:], ""], strict=True):
            if word.startswith(f"{flag}="):
                return word.partition("=")[2] or None
            if word == flag and not after.startswith("--"):
                return after or None
        return None
