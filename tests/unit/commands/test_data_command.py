"""``proctor data VERB``: the table of verbs, and how it answers words that are none of them."""

from __future__ import annotations

from importlib import import_module

import pytest

from proctor.cli import main
from proctor.commands import data


def test_help_lists_every_verb_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["data"], ["data", "--help"], ["data", "-h"], ["data", "help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "proctor data VERB --help" in out
        for name, verb in data.VERBS.items():
            assert f"proctor data {name} " in out
            assert verb.summary in out


def test_every_verb_leads_to_a_function_that_answers_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, verb in data.VERBS.items():
        module, _, function = verb.function.partition(":")
        assert callable(getattr(import_module(module), function)), name
        assert main(["data", name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"proctor data {name}")


def test_a_typing_error_gets_one_line_with_the_nearest_verb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(data.VERBS, "squash", data.Verb("make it flat", "nowhere:squash"))
    assert main(["data", "squahs"]) == 2
    err = capsys.readouterr().err
    assert "unknown verb 'squahs'; did you mean 'squash'? (proctor data does: " in err
    assert err.count("\n") == 1


def test_the_words_after_a_verb_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def squash(words: list[str]) -> int:
        given.extend(words)
        return 3

    monkeypatch.setattr(data, "squash", squash, raising=False)
    monkeypatch.setitem(data.VERBS, "squash", data.Verb("flat", "proctor.commands.data:squash"))
    assert main(["data", "squash", "here", "--flat=true"]) == 3
    assert given == ["here", "--flat=true"]
