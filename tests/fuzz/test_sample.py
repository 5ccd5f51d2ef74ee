"""A small, fixed sample of what ``make fuzz`` does at length."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz import checkpoints
from tests.fuzz.campaign import attack
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.runs import write_files
from tests.fuzz.sandbox import BrokenPromise, Sandbox, open_sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox() as sandbox:
        yield sandbox


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_hostile_input_gets_one_line_and_does_nothing(kind: Kind, sandbox: Sandbox) -> None:
    tally = attack(kind, max(5, kind.share // 5), 2024, sandbox)
    assert tally.cases >= 5
    assert not tally.findings, "\n".join(tally.findings.values())


def test_a_tokenizer_that_would_match_for_ever_ends_a_command_at_once(sandbox: Sandbox) -> None:
    with sandbox.case():
        folder = checkpoints.good_listener(sandbox.inputs)
        rules = json.loads(folder["tokenizer/tokenizer.json"])
        rules["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}}
        folder["tokenizer/tokenizer.json"] = json.dumps(rules).encode()
        write_files(sandbox.inputs / "checkpoint", folder)
        words = ["eval", f"--policy.path={sandbox.inputs / 'checkpoint'}", "--env.type=fake"]
        assert "(a+)+$" in sandbox.run_command(words, codes=(2,)).err


def test_what_a_library_says_past_python_is_a_finding(sandbox: Sandbox) -> None:
    with (
        sandbox.case(),
        pytest.raises(BrokenPromise, match="by a library"),
        sandbox.watched("a panic"),
    ):
        os.write(2, b"thread '<unnamed>' panicked")


def test_a_traceback_is_a_finding(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.commands.info.run", lambda words: 1 // 0)
    with sandbox.case(), pytest.raises(BrokenPromise, match="ZeroDivisionError"):
        sandbox.run_command(["info"])


def test_several_lines_are_a_finding(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.cli.strip_control_codes", lambda text: "one\ntwo")
    with sandbox.case(), pytest.raises(BrokenPromise, match="not one line"):
        sandbox.run_command(["nonsense"])


def test_a_write_elsewhere_is_a_finding_even_through_a_link(sandbox: Sandbox) -> None:
    with sandbox.case():
        link = sandbox.inputs / "link"
        link.symlink_to(sandbox.outside / "new")
        with pytest.raises(BrokenPromise, match="open"), sandbox.watched("a write"):
            link.write_text("x")
        with sandbox.watched("a write inside"):
            (sandbox.out / "file").write_text("x")


def test_a_write_elsewhere_that_python_does_not_hear_of_is_a_finding(sandbox: Sandbox) -> None:
    with sandbox.case():
        place = str(sandbox.outside / "new.parquet")
        with pytest.raises(BrokenPromise, match="elsewhere"), sandbox.watched("a write"):
            pq.write_table(pa.table({"a": [1]}), place)
        Path(place).unlink()


def test_code_is_a_finding(sandbox: Sandbox) -> None:
    import importlib
    import subprocess
    import sys

    with sandbox.case():
        with pytest.raises(BrokenPromise, match="canary"), sandbox.watched("an import"):
            importlib.import_module("proctor_fuzz_canary")
        del sys.modules["proctor_fuzz_canary"]
        with pytest.raises(BrokenPromise, match="started"), sandbox.watched("a program"):
            subprocess.run(["true"], check=True)
