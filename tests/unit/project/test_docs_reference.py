"""The generated reference has every command, every flag and every error code."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from proctor.commands.shared.names import COMMANDS
from proctor.config.builder import own_flags
from proctor.config.training import TrainConfig

ROOT = Path(__file__).parents[3]


@pytest.fixture
def docs_reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    for name in ("docs_reference", "docs_errors"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import docs_reference  # type: ignore[import-not-found]

    return docs_reference  # type: ignore[no-any-return]


@pytest.fixture
def docs_errors(docs_reference: ModuleType) -> ModuleType:
    return sys.modules["docs_errors"]


def test_every_command_has_a_page(docs_reference: ModuleType, tmp_path: Path) -> None:
    docs_reference.write(tmp_path)
    pages = {page.stem for page in (tmp_path / "reference" / "commands").glob("*.md")}
    assert pages == {*COMMANDS, "index"}
    assert (tmp_path / "reference" / "error_codes.md").exists()


def test_the_threat_model_says_what_every_command_trusts() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| command |")
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", table.partition("\n## ")[0], re.MULTILINE)
    assert [name for name, _ in rows] == [*COMMANDS]
    assert all(cell.strip() for _, cells in rows for cell in cells.split("|"))


def test_every_flag_of_a_command_has_an_anchor(docs_reference: ModuleType) -> None:
    page = "\n".join(docs_reference.command_page("train"))
    missing = [
        flag.name for flag in own_flags(TrainConfig) if f"{{option}} --{flag.name}" not in page
    ]
    assert missing == []


def test_flags_of_a_plug_in_stand_below_its_heading(docs_reference: ModuleType) -> None:
    page = "\n".join(docs_reference.command_page("eval"))
    _, _, act = page.partition("### `--policy.type=act`")
    assert "{option} --policy.chunk_size" in act.partition("###")[0]


def test_every_verb_of_data_lists_its_flags(docs_reference: ModuleType) -> None:
    page = "\n".join(docs_reference.command_page("data"))
    _, _, delete = page.partition("## `proctor data delete`")
    assert "{option} --output=DIR, --new_root=DIR" in delete.partition("\n## ")[0]


def test_help_texts_are_shown_as_they_are(docs_reference: ModuleType) -> None:
    assert docs_reference.prose("stop at ci_width<0.05; see --eval.n_episodes") == (
        r"Stop at ci\_width\<0.05; see `--eval.n_episodes`"
    )


def test_a_default_has_a_line_of_its_own(docs_reference: ModuleType) -> None:
    flag = next(flag for flag in own_flags(TrainConfig) if flag.name == "seed")
    lines = list(docs_reference.options([flag], "proctor train"))
    assert any(line.startswith("Default: ") for line in lines)


def test_an_error_code_shows_the_messages_that_carry_it(docs_errors: ModuleType) -> None:
    found = docs_errors.error_codes()
    assert "--… is given twice" in found["flag.duplicate"].messages
    assert found["flag.unknown"].kinds == {"UsageError"}
    assert any("needs a value" in text for text in found["flag.missing-value"].messages)
    assert found["extra.missing"].messages[0].startswith("An optional dependency is missing")


def test_values_in_a_message_become_dots(docs_errors: ModuleType) -> None:
    text = ast.parse('f"{where}: {what!r} is {kind}"', mode="eval").body
    assert docs_errors.gist(text) == "… is …"
