"""Every flag of every command and plug-in: its text, its unit and its printed default."""

from __future__ import annotations

import dataclasses
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from proctor.commands.shared.all_flags import CONFIGS, PLAIN, command_configs, plain_command
from proctor.commands.shared.verbs import VERBS, verb
from proctor.config.flags.help import all_flags
from proctor.config.flags.help_lines import VARIES, default_text, flag_usage
from proctor.config.flags.parsing import Flag, parse_value
from proctor.features import NormMode

LONGEST = 160
RIDDLES = re.compile(
    r"\b(what|whoever|whatever they|nobody|that which|so many|others may|the one that)\b"
)
"""Words of texts that paraphrase a term instead of naming it."""
UNITS = {
    r"_ms$": "millisecond",
    r"_s$": "second",
    r"_minutes$": "minute",
    r"_mb$": r"\bM(i)?B\b",
    r"_gb$": r"\bGB\b",
    r"_steps$|_freq$|_length$": r"step|action|batches|token|horizon|layer",
    r"(height|width)$": "pixel",
    r"fps$": "per second",
}
"""Endings of the names of numeric flags, and the unit that the text then names."""
NO_UNIT = {"policy.timestep_sampling_s", "width"}
"""LeRobot's names that end like a unit: this one is a number between 0 and 1."""


@cache
def flags() -> dict[str, Flag]:
    """Return every flag by a label: command, plug-in and name."""
    found: dict[str, Flag] = {}
    for name in CONFIGS:
        for one in (one for config in command_configs(name) for one in all_flags(config, {})):
            found[f"{name} {one.owner} --{one.flag.name}"] = one.flag
    commands = {name: plain_command(name) for name in PLAIN}
    commands |= {
        f"{command} {name}": verb(command, name) for command in VERBS for name in VERBS[command]
    }
    for name, command in commands.items():
        for one in command.all_flags():
            found[f"{name} {one.heading} --{one.flag.name}"] = one.flag
    return found


def broken(is_broken: dict[str, str]) -> dict[str, str]:
    return {label: said for label, said in is_broken.items() if said}


def test_all_commands_and_plug_ins_are_covered() -> None:
    labels = "\n".join(flags())
    assert len(flags()) > 1000
    for part in ("eval libero", "train pi05", "serve remote", "data edit", "compare", "data push"):
        assert f"{part} " in labels


def test_every_flag_has_a_text_of_one_style_and_length() -> None:
    def fault(flag: Flag) -> str:
        text = flag.help
        if not text:
            return "has no text"
        if len(text) > LONGEST and not flag.name.endswith(".type"):  # that lists all names
            return f"is {len(text)} characters long"
        if not re.match(r"[a-z]|[A-Z]\w*[A-Z&]|Hub ", text):
            return f"begins neither in lower case nor with an acronym: {text}"
        if text.endswith((".", ":", ",")):
            return f"ends in punctuation: {text}"
        if "default:" in text:
            return f"states a default in its text, not as default_help: {text}"
        return f"is a riddle: {text}" if RIDDLES.search(text) else ""

    assert broken({label: fault(flag) for label, flag in flags().items()}) == {}


def test_every_flag_has_a_heading() -> None:
    of_plugins = {k: f for k, f in flags().items() if k.split()[0] in CONFIGS}
    assert [label for label, flag in of_plugins.items() if not flag.group] == []


def test_numbers_name_their_unit() -> None:
    def fault(flag: Flag) -> str:
        for ending, unit in UNITS.items():
            is_number = flag.inner in (int, float) and flag.name not in NO_UNIT
            if is_number and re.search(ending, flag.name):
                return "" if re.search(unit, flag.help) else f"lacks its unit: {flag.help}"
        return ""

    assert broken({label: fault(flag) for label, flag in flags().items()}) == {}


def test_the_printed_default_is_typed_back_to_the_default() -> None:
    def fault(flag: Flag) -> str:
        printed = default_text(flag)
        if flag.required or flag.default is VARIES or flag.default is False:
            return "" if printed in ("", " (required)") else f"prints {printed}"
        meaning = flag.default_help
        if meaning and (flag.default in (None, "", [], {}) or "=" not in printed):
            described = printed in (f" (default: {meaning})", f" ({meaning})")
            return "" if described else f"prints {printed}"
        text = printed.removeprefix(" (default: ").removesuffix(")")
        text = text.removesuffix(f" = {meaning}") if meaning else text
        (word,) = shlex.split(text) or [""]
        return "" if parse_value(flag, word) == flag.default else f"prints {printed}"

    assert broken({label: fault(flag) for label, flag in flags().items()}) == {}


def test_a_default_without_a_value_says_what_it_means() -> None:
    unsaid = [
        label
        for label, flag in flags().items()
        if flag.default in (None, "", [], {}) and not flag.default_help
    ]
    assert unsaid == []


@pytest.mark.parametrize(
    ("kind", "default", "printed"),
    [
        (bool, True, "true"),
        (bool | None, None, "none"),
        (int | None, None, "none"),
        (float, 120.0, "120"),
        (float, 1e-5, "1e-05"),
        (float, 0.1 + 0.2, "0.30000000000000004"),
        (NormMode, NormMode.MEAN_STD, "MEAN_STD"),
        (Path, Path("a b"), "'a b'"),
        (str, "", "''"),
        (list[int], [84, 84], "[84,84]"),
        (list[str], ["a", "b"], "a,b"),
        (list[float], [0.9, 0.999], "[0.9,0.999]"),
        (dict[str, NormMode], {"STATE": NormMode.MIN_MAX}, "'{STATE: MIN_MAX}'"),
        (dict[str, dict[str, list[float]]], {"a": {"b": [1.5, 2]}}, "'{a: {b: [1.5,2]}}'"),
        (dict[str, str], {"a": "true", "b": "x: y"}, """'{a: "true", b: "x: y"}'"""),
    ],
)
def test_a_default_prints_as_one_types_it(kind: object, default: object, printed: str) -> None:
    flag = Flag("x", kind, default, "")
    assert default_text(flag) == f" (default: {printed})"
    (word,) = shlex.split(printed)
    assert parse_value(flag, word) == default


@pytest.mark.parametrize(
    ("kind", "default", "usage"),
    [
        (int, 1, "--x=INT"),
        (bool, False, "--x"),
        (bool, True, "--x=true|false"),
        (Path | None, None, "--x=PATH"),
        (list[int], [], "--x=[INT,...]"),
        (list[str] | None, None, "--x=NAME,..."),
        (dict[str, str], {}, "--x={NAME: TEXT}"),
    ],
)
def test_a_value_is_named_by_its_type(kind: object, default: object, usage: str) -> None:
    assert flag_usage(Flag("x", kind, default, "")) == usage


def test_a_default_with_a_meaning_prints_both() -> None:
    flag = Flag("x", int, 0, "", default_help="no limit")
    assert default_text(flag) == " (default: 0 = no limit)"
    assert default_text(dataclasses.replace(flag, default=VARIES)) == ""
    assert default_text(dataclasses.replace(flag, default=dataclasses.MISSING)) == " (required)"
