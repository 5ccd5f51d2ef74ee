"""Write the reference pages that are generated from code: commands, flags and error codes.

    .venv/bin/python scripts/docs_reference.py [DOCS_FOLDER]

`make docs` calls it. The pages are not committed: the code is their source.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from docs_errors import error_page, escaped

from proctor import plugins
from proctor.commands.shared.all_flags import CONFIGS, command_configs
from proctor.commands.shared.names import COMMANDS, command_module
from proctor.commands.shared.verbs import VERBS, verb
from proctor.config.base import Config, PluginSection, plugin_sections
from proctor.config.builder import find_plugin, own_flags, plugin_flags
from proctor.config.flags.command import CommandConfig, summary_of
from proctor.config.flags.help_lines import flag_text, flag_usage, group_flags
from proctor.config.flags.parsing import Flag

ROOT = Path(__file__).resolve().parents[1]
PLUGIN_TITLES = {
    "benchmarks": "Benchmarks",
    "policies": "Policies",
    "robots": "Robots",
    "teleoperators": "Teleoperators",
}
CODE_IN_TEXT = re.compile(r"`[^`]+`|(?<![\w-])--[a-z_][\w.-]*\w(?:=[\w.:/,|]*\w)?")
"""Quoted code, or a flag, in a help text."""
DEFAULT_AT_END = re.compile(r"(.*?)(?: \(((?:default: .*|required.*))\))?")
"""A help text, with its default split off."""


def write(docs: Path) -> None:
    """Write all generated pages below ``docs``."""
    folder = docs / "reference" / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: "\n".join(command_page(name)) for name in COMMANDS}
    pages["index"] = "\n".join(index_page())
    for name, text in pages.items():
        _write_if_changed(folder / f"{name}.md", text)
    _write_if_changed(docs / "reference" / "error_codes.md", "\n".join(error_page()))


def _write_if_changed(path: Path, text: str) -> None:
    """Leave an unchanged page alone: Sphinx reads changed files only."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def index_page() -> Iterator[str]:
    """Yield the lines of the list of commands."""
    yield from ("# Commands", "", "Every command, and every flag of it, generated from the code.")
    yield from ("", "| command | what it does |", "|---|---|")
    for name, summary in COMMANDS.items():
        yield f"| [`proctor {name}`]({name}.md) | {escaped(summary)} |"
    yield from ("", "In a shell, `proctor COMMAND --help` shows the same.", "")
    yield from ("```{toctree}", ":hidden:", "", *COMMANDS, "```", "")


def command_page(name: str) -> Iterator[str]:
    """Yield the lines of one command's page."""
    yield from (f"# `proctor {name}`", "", f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.", "")
    if name in VERBS:
        yield from ("| verb | what it does |", "|---|---|")
        for which in VERBS[name]:
            summary = escaped(summary_of(verb(name, which)))
            yield f"| [`{which}`](#proctor-{name}-{which}) | {summary} |"
        yield ""
        for which in VERBS[name]:
            yield from (f"## `proctor {name} {which}`", "")
            yield from _command_sections(verb(name, which), f"proctor {name} {which}")
    elif name in CONFIGS:
        usual, *others = command_configs(name)
        yield from _config_sections(usual, f"proctor {name}")
        for config in others:
            yield from _other_sections(config, usual, f"proctor {name}")
    elif (kind := _command_of(name)) is not None:
        yield from _command_sections(kind, f"proctor {name}")
    else:
        yield from ("```text", _printed_help(name), "```", "")


def _config_sections(cls: type[Config], prog: str) -> Iterator[str]:
    """Yield the flags of the command itself by heading, then those of each plug-in."""
    sections = plugin_sections(cls)
    choices = " ".join(f"--{section}.type=NAME" for section in reversed(sections))
    yield from ("```text", f"{prog} {choices} [--FLAG=VALUE ...]", "```", "")
    for title, flags in group_flags(own_flags(cls)).items():
        yield from (f"## {title}", "", *options(flags, prog))
    yield from _plugin_tables(cls, sections, prog)


def _other_sections(cls: type[Config], usual: type[Config], prog: str) -> Iterator[str]:
    """Yield the flags of a config that a section chooses, as --robot.type, beside the usual one."""
    sections = plugin_sections(cls)
    added = {
        name: marked for name, marked in sections.items() if name not in plugin_sections(usual)
    }
    named = ", ".join(f"`--{section}.*`" for section in added)
    label = f"{prog} with {' or '.join(added)}"
    choices = " ".join(f"--{section}.type=NAME" for section in reversed(sections))
    yield from (
        f"## With {named}",
        "",
        "```text",
        f"{prog} {choices} [--FLAG=VALUE ...]",
        "```",
        "",
    )
    for title, flags in group_flags(own_flags(cls)).items():
        yield from (f"**{title}**", "", *options(flags, label))
    yield from _plugin_tables(cls, added, label)


def _plugin_tables(
    cls: type[Config], sections: Mapping[str, PluginSection], prog: str
) -> Iterator[str]:
    """Yield the plug-ins of sections, and the flags of each."""
    for section, marked in sections.items():
        names = plugins.known_plugins(marked.kind, cls.use)
        yield from (f"## {PLUGIN_TITLES[marked.kind]}: `--{section}.type`", "")
        yield from (f"| `--{section}.type=` | what it is |", "|---|---|")
        for name in names:
            summary = escaped(find_plugin(marked.kind, name).summary)
            yield f"| [`{name}`](#--{section}type{name}) | {summary} |"
        yield ""
        for name in names:
            flags = [
                flag for flag in plugin_flags(cls, section, name) if flag.name != f"{section}.type"
            ]
            yield from (f"### `--{section}.type={name}`", "")
            for title, members in group_flags(flags).items():
                yield from (f"**{title}**", "", *options(members, f"{prog} {name}"))
            if not flags:
                yield from ("No more flags.", "")


def options(flags: Iterable[Flag], program: str) -> Iterator[str]:
    """Yield one ``option`` directive per flag: it has an anchor and is found by the search."""
    yield from (f"```{{program}} {program}", "```", "")
    for flag in flags:
        yield from _option(flag_usage(flag), flag_text(flag))


def _option(usage: str, text: str) -> Iterator[str]:
    """Yield the directive of one flag or argument: how it is typed, its meaning, its default."""
    meaning, default = DEFAULT_AT_END.fullmatch(text).groups()  # type: ignore[union-attr]
    typed = re.sub(r" \(or (--.*)\)$", r"\0\1", usage).replace(", ", ",").replace("\0", ", ")
    yield from (f":::{{option}} {typed}", prose(meaning))
    if default:
        yield from ("", prose(default))
    yield from (":::", "")


def prose(text: str) -> str:
    """Return a help text as Markdown: flags and code as code, every other character as it is."""
    said = text[:1].upper() + text[1:]
    return "".join(
        f"`{part.strip('`')}`" if number % 2 else escaped(part)
        for number, part in enumerate(re.split(f"({CODE_IN_TEXT.pattern})", said))
    )


def _command_of(name: str) -> type[CommandConfig] | None:
    """Return the dataclass of a command, or None for one that reads its words itself."""
    module = import_module(command_module(name))
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type))
    own = (kind for kind in kinds if kind.__module__ == module.__name__)
    return next((kind for kind in own if issubclass(kind, CommandConfig)), None)


def _command_sections(kind: type[CommandConfig], prog: str) -> Iterator[str]:
    """Yield a command's usage and description, then its arguments and flags."""
    usage, _, rest = kind.help(prog).partition("\n\n")
    yield from ("```text", usage, "```", "")
    program = prog
    for block in re.split(r"\n(?=\S.*\n  \S)|\n\n", rest):
        heading, entries = _split_block(block)
        if entries and heading.startswith("--"):
            program = f"{prog} {heading.partition('=')[2]}"
            yield from (f"### `{heading}`", "")
        elif heading and not entries:
            yield from (prose(heading), "")
        elif heading:
            yield from (f"**{heading}**", "")
        if entries:
            yield from (f"```{{program}} {program}", "```", "")
        for usage, text in entries:
            yield from _option(usage, text)


def _split_block(block: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of a block of help, and its entries: usage and meaning."""
    head, *tail = re.split(r"(?m)^  (?=\S)", block)
    entries = [entry.partition("\n") for entry in tail]
    return " ".join(head.split()), [(name, " ".join(text.split())) for name, _, text in entries]


def _printed_help(name: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        import_module(command_module(name)).run(["--help"])
    return printed.getvalue().rstrip()


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
