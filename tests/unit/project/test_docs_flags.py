"""Flags and links in the documents are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proctor.commands.data.lerobot import OPERATIONS
from proctor.commands.shared.all_flags import CONFIGS, PLAIN, command_configs, plain_command
from proctor.commands.shared.verbs import VERBS, verb
from proctor.config.flags.command import CommandConfig
from proctor.config.flags.help import flags_help
from proctor.config.flags.parsing import flags_of
from tests.documents import all_pages, is_generated

ROOT = Path(__file__).parents[3]
PLAIN_COMMANDS: dict[str, type[CommandConfig]] = {
    **{name: plain_command(name) for name in PLAIN},
    **{f"{command} {name}": verb(command, name) for command in VERBS for name in VERBS[command]},
}
LINE = re.compile(
    rf"\bproctor(?:\.cli)? ({'|'.join([*CONFIGS, *PLAIN])}|data [a-z-]+)(?![\w-])([^\n`]*)"
)
FLAG = re.compile(r"(?<![\w-])--([a-z_][\w.-]*)")
LEROBOTS = {"env.fps", "env.render_mode", "policy.push_to_hub"}
"""LeRobot flags that evaluations accept with a note; docs/tutorials/from_lerobot.md shows them."""
OF_THE_PAGE = {"help", "policy.radius", "policy.dataset"}
"""Flags that every command has, and flags of the example in docs/tutorials/own_policy.md."""


def unknown_flags(text: str, known: dict[str, set[str]]) -> list[str]:
    """Return the flags of command lines that the command would refuse."""
    return [
        f"{command} --{name}"
        for command, words in LINE.findall(text.replace("\\\n", " "))
        for name in FLAG.findall(words)
        if command in known
        if name not in known[command] | LEROBOTS | OF_THE_PAGE
    ]


def broken_links(page: Path, text: str) -> list[str]:
    """Return the links to files, or to headings, that do not exist."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = (page.parent / path).resolve() if path else page
        if is_generated(target):  # `make docs` checks these
            continue
        if not target.exists() or (heading and heading not in headings(target)):
            lost.append(f"{page.relative_to(ROOT)}: {link}")
    return lost


def headings(page: Path) -> set[str]:
    """Return a page's headings as link anchors."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", name.lower()).strip().replace(" ", "-") for name in found}


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    found = {
        name: {flag for cls in command_configs(name) for flag in FLAG.findall(flags_help(cls, {}))}
        for name in CONFIGS
    }
    for name, command in PLAIN_COMMANDS.items():
        own = flags_of(command, sections={"operation": None})
        found[name] = {spelling for flag in own for spelling in (flag.name, str(flag.alias))}
    found["audit"] |= found["eval"]
    found["reproduce"] |= found["eval"]
    found["data edit"] |= {"operation.type"}
    for operation in OPERATIONS.values():
        found["data edit"] |= {flag.name for flag in flags_of(operation, "operation.")}
    return found


def test_every_flag_in_a_command_line_of_the_documents_exists(known: dict[str, set[str]]) -> None:
    lost = {
        page.name: unknown_flags(page.read_text(encoding="utf-8"), known) for page in all_pages()
    }
    assert {name: flags for name, flags in lost.items() if flags} == {}


def test_every_link_in_the_documents_is_valid() -> None:
    assert [
        lost for page in all_pages() for lost in broken_links(page, page.read_text("utf-8"))
    ] == []


def test_an_invalid_flag_or_link_would_be_found(known: dict[str, set[str]]) -> None:
    shown = "    proctor eval --seed=3 \\\n        --eval.n_episode=3\n`proctor train --seed=1`"
    assert unknown_flags(shown, known) == ["eval --eval.n_episode"]
    page = ROOT / "docs/guides/read_the_report.md"
    text = "[a](doctor.md#rendering) [b](doctor.md#two-rates) [c](nowhere.md)"
    assert broken_links(page, text) == [
        "docs/guides/read_the_report.md: doctor.md#two-rates",
        "docs/guides/read_the_report.md: nowhere.md",
    ]
