"""Commands with verbs (``proctor data VERB``): tables of verbs, dispatch and help.

A verb's module is imported when the verb is called.
"""

from __future__ import annotations

from importlib import import_module

from proctor.config.flags.command import CommandConfig, run_command, summary_of
from proctor.config.flags.help_lines import help_width, print_help
from proctor.config.flags.help_search import OwnedFlag, search_help
from proctor.errors import UsageError, did_you_mean

VERBS = {
    "data": {
        "info": "proctor.commands.data.info:DataInfoCommand",
        "check": "proctor.commands.data.check:DataCheckCommand",
        "view": "proctor.commands.data.view:DataViewCommand",
        "cache": "proctor.commands.data.cache:DataCacheCommand",
        "delete": "proctor.commands.data.edit:DataDeleteCommand",
        "split": "proctor.commands.data.edit:DataSplitCommand",
        "merge": "proctor.commands.data.edit:DataMergeCommand",
        "rename-feature": "proctor.commands.data.edit:DataRenameFeatureCommand",
        "remove-feature": "proctor.commands.data.edit:DataRemoveFeatureCommand",
        "set-task": "proctor.commands.data.edit:DataSetTaskCommand",
        "to-video": "proctor.commands.data.encode:DataToVideoCommand",
        "reencode": "proctor.commands.data.encode:DataReencodeCommand",
        "stats": "proctor.commands.data.encode:DataStatsCommand",
        "convert": "proctor.commands.data.edit:DataConvertCommand",
        "push": "proctor.commands.data.hub:DataPushCommand",
        "pull": "proctor.commands.data.hub:DataPullCommand",
        "edit": "proctor.commands.data.lerobot:DataEditCommand",
    },
    "benchmarks": {
        "list": "proctor.commands.benchmarks.list:BenchmarksListCommand",
        "install": "proctor.commands.benchmarks.install:BenchmarksInstallCommand",
        "remove": "proctor.commands.benchmarks.install:BenchmarksRemoveCommand",
        "doctor": "proctor.commands.benchmarks.doctor:BenchmarksDoctorCommand",
    },
}
"""Every verb by command, and the ``CommandConfig`` that it runs. A new verb is its class and one
line here."""

_OVERVIEW = """\
proctor {command} VERB ...

{verbs}

  proctor {command} VERB --help  lists the flags of a verb
  proctor {command} --help WORD  searches in the flags of all verbs
"""


def run_verb(command: str, words: list[str]) -> int:
    """Run a verb of ``command``, or print the help; return the exit code."""
    verbs = VERBS[command]
    sought = words[1:] if words[:1] in (["--help"], ["help"]) else []
    if sought and sought[0] in verbs:
        return run_verb(command, [sought[0], "--help", *sought[1:]])
    if sought:
        print_help(search_help(f"proctor {command}", flags_of_verbs(command), sought, help_width()))
        return 0
    if not words or words[0] in ("--help", "help"):
        lines = [f"  proctor {command} {name:<14} {_summary(command, name)}" for name in verbs]
        print(_OVERVIEW.format(command=command, verbs="\n".join(lines)), end="")
        return 0
    if words[0] not in verbs:
        raise UsageError(
            f"unknown verb {words[0]!r}{did_you_mean(words[0], verbs)} "
            f"(proctor {command} does: {', '.join(verbs)})",
            code="command.unknown",
        )
    return run_command(verb(command, words[0]), f"proctor {command} {words[0]}", words[1:])


def verb(command: str, name: str) -> type[CommandConfig]:
    """Return the class of a verb."""
    module, _, attribute = VERBS[command][name].partition(":")
    found: type[CommandConfig] = getattr(import_module(module), attribute)
    return found


def flags_of_verbs(command: str) -> list[OwnedFlag]:
    """List the flags of all verbs of ``command``, each with its verb."""
    return [
        OwnedFlag(one.flag, "Verbs", name)
        for name in VERBS[command]
        for one in verb(command, name).all_flags()
    ]


def _summary(command: str, name: str) -> str:
    return summary_of(verb(command, name))
