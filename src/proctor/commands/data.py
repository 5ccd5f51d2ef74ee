"""``proctor data VERB``: the table of verbs, each a command that is imported when it is called."""

from __future__ import annotations

from importlib import import_module

from proctor.config.command import CommandConfig, run_command, summary_of
from proctor.config.help_lines import help_width, print_help
from proctor.config.help_search import OwnedFlag, search_help
from proctor.errors import UsageError, did_you_mean

VERBS = {
    "info": "proctor.commands.data_info:DataInfoCommand",
    "check": "proctor.commands.data_check:DataCheckCommand",
    "view": "proctor.commands.data_view:DataViewCommand",
    "cache": "proctor.commands.data_cache:DataCacheCommand",
    "delete": "proctor.commands.data_edit:DataDeleteCommand",
    "split": "proctor.commands.data_edit:DataSplitCommand",
    "merge": "proctor.commands.data_edit:DataMergeCommand",
    "rename-feature": "proctor.commands.data_edit:DataRenameFeatureCommand",
    "remove-feature": "proctor.commands.data_edit:DataRemoveFeatureCommand",
    "set-task": "proctor.commands.data_edit:DataSetTaskCommand",
    "to-video": "proctor.commands.data_encode:DataToVideoCommand",
    "reencode": "proctor.commands.data_encode:DataReencodeCommand",
    "stats": "proctor.commands.data_encode:DataStatsCommand",
    "convert": "proctor.commands.data_edit:DataConvertCommand",
    "push": "proctor.commands.data_hub:DataPushCommand",
    "pull": "proctor.commands.data_hub:DataPullCommand",
    "edit": "proctor.commands.data_lerobot:DataEditCommand",
}
"""Every verb, and the ``CommandConfig`` that it runs. A new verb is its class and one line here."""

_OVERVIEW = """\
proctor data VERB ...

{verbs}

  proctor data VERB --help  lists the flags of a verb
  proctor data --help WORD  searches in the flags of all verbs
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    sought = words[1:] if words[:1] in (["--help"], ["help"]) else []
    if sought and sought[0] in VERBS:
        return run([sought[0], "--help", *sought[1:]])
    if sought:
        print_help(search_help("proctor data", flags_of_verbs(), sought, help_width()))
        return 0
    if not words or words[0] in ("--help", "help"):
        lines = [f"  proctor data {name:<14} {summary_of(verb(name))}" for name in VERBS]
        print(_OVERVIEW.format(verbs="\n".join(lines)), end="")
        return 0
    if words[0] not in VERBS:
        raise UsageError(
            f"unknown verb {words[0]!r}{did_you_mean(words[0], VERBS)} "
            f"(proctor data does: {', '.join(VERBS)})",
            code="command.unknown",
        )
    return run_command(verb(words[0]), f"proctor data {words[0]}", words[1:])


def verb(name: str) -> type[CommandConfig]:
    """Return the command of a verb."""
    module, _, attribute = VERBS[name].partition(":")
    found: type[CommandConfig] = getattr(import_module(module), attribute)
    return found


def flags_of_verbs() -> list[OwnedFlag]:
    """List the flags of all verbs, each with its verb."""
    return [OwnedFlag(one.flag, "Verbs", name) for name in VERBS for one in verb(name).all_flags()]
