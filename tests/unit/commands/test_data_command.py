"""``proctor data VERB``: the table of verbs, their help, and unknown verbs."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from proctor.cli import main
from proctor.commands.shared import verbs
from proctor.config.flags.command import CommandConfig, argument, summary_of
from proctor.config.flags.parsing import flags_of


def test_help_lists_every_verb_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["data"], ["data", "--help"], ["data", "-h"], ["data", "help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "proctor data VERB --help" in out
        for name in verbs.VERBS["data"]:
            assert re.search(
                rf"proctor data {name} +{re.escape(summary_of(verbs.verb('data', name)))}\n", out
            )


def test_the_help_of_a_verb_has_every_flag_with_its_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in verbs.VERBS["data"]:
        assert main(["data", name, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"proctor data {name}")
        assert max(map(len, out.splitlines())) <= 98
        for flag in flags_of(verbs.verb("data", name), sections={"operation": None}):
            assert f"\n  --{flag.name}" in out
            assert flag.help.split()[0] in out, f"{name} --{flag.name}"


def test_help_imports_neither_torch_nor_pyarrow() -> None:
    program = (
        "import sys; from proctor.cli import main\n"
        "from proctor.commands.shared.verbs import VERBS\n"
        "for words in ['data'], *([name, verb] for name in VERBS for verb in VERBS[name]), "
        "['benchmarks'], ['compare'], ['report'], "
        "['audit'], ['view'], ['doctor'], ['info']: main([*words, '--help'])\n"
        "print([m for m in ('torch', 'pyarrow', 'scipy', 'av', 'mujoco') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@dataclass(kw_only=True)
class Squash(CommandConfig):
    """Make it flat."""

    word: str = field(metadata=argument("WORD", "a word"))
    flat: bool = field(default=False, metadata={"help": "really"})

    def run(self) -> int:
        assert (self.word, self.flat) == ("here", True)
        return 3


@pytest.fixture
def squash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "Squash", Squash, raising=False)
    monkeypatch.setitem(verbs.VERBS["data"], "squash", "proctor.commands.shared.verbs:Squash")


@pytest.mark.usefixtures("squash")
def test_a_typing_error_gets_one_line_with_the_nearest_verb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["data", "squahs"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'squash'?" in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("squash")
def test_the_words_after_a_verb_are_its_arguments_and_flags() -> None:
    assert main(["data", "squash", "here", "--flat=true"]) == 3
    assert main(["data", "squash", "--flat", "here"]) == 3
