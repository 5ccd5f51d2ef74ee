"""``proctor completion SHELL``: a script that completes commands, flags and values with TAB.

The script asks ``proctor`` itself, with ``PROCTOR_COMPLETE`` set, for the words that can follow. So
the flags of plug-ins are completed too, and the script never gets out of date.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from proctor.config.flags.command import CommandConfig, argument, run_command
from proctor.errors import ProctorError, UsageError, did_you_mean

_BASH = """\
_proctor() {
  local word=${COMP_LINE:0:COMP_POINT} line
  word=${word##*[[:space:]]}
  COMPREPLY=()
  while IFS= read -r line; do
    # Bash completes what follows an equals sign as a word of its own.
    [[ $word == *=* ]] && line=${line#"${word%%=*}="}
    COMPREPLY+=("$line")
  done < <(PROCTOR_COMPLETE=1 proctor ${COMP_LINE:0:COMP_POINT-${#word}} "$word" 2>/dev/null)
}
complete -o nospace -o default -F _proctor proctor
"""
_ZSH = """\
#compdef proctor
_proctor() {
  local -a found
  found=("${(@f)$(PROCTOR_COMPLETE=1 proctor "${words[@]:0:$CURRENT}" 2>/dev/null)}")
  found=(${found:#})
  (( $#found )) && compadd -S '' -- $found || _files
}
compdef _proctor proctor
"""
_FISH = r"""complete -c proctor -a \
  '(PROCTOR_COMPLETE=1 proctor (commandline -opc) (commandline -ct) 2>/dev/null)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@dataclass(kw_only=True)
class CompletionCommand(CommandConfig):
    """Print a script that completes proctor's commands, flags and values with TAB.

    bash: proctor completion bash > ~/.local/share/bash-completion/completions/proctor
    zsh: proctor completion zsh > "${fpath[1]}/_proctor"
    fish: proctor completion fish | source (in ~/.config/fish/config.fish)
    """

    shell: str = field(metadata=argument("SHELL", "bash, zsh or fish"))

    def validate(self) -> None:
        """Refuse an unknown shell."""
        if self.shell not in _SCRIPTS:
            near = did_you_mean(self.shell, _SCRIPTS) or f" (choose {', '.join(_SCRIPTS)})"
            raise UsageError(f"no completion for {self.shell!r}{near}", code="argument.unknown")

    def run(self) -> int:
        """Print the script."""
        print(_SCRIPTS[self.shell], end="")
        return 0


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(CompletionCommand, "proctor completion", words)


def print_candidates(words: Sequence[str]) -> int:
    """Print the words that can stand in place of the last of ``words``, one a line."""
    *before, last = words[1:] or [""]  # the script passes "proctor" itself first
    try:
        for candidate in sorted(set(candidates(before, last))):
            print(candidate)
    except ProctorError:
        return 0  # a mistake in an earlier word: the command will explain it
    return 0


def candidates(before: Sequence[str], last: str) -> Iterator[str]:
    """Yield the words that can stand in place of ``last`` after ``before``."""
    from proctor.commands.shared.names import COMMANDS
    from proctor.commands.shared.verbs import VERBS

    if not before:
        yield from _beginning(COMMANDS, last)
        return
    command, *rest = before
    if command in VERBS and not rest:
        yield from _beginning(VERBS[command], last)
    elif command == "completion":
        yield from _beginning(_SCRIPTS, last)
    elif last.startswith("--") and "=" in last:
        name, _, value = last.partition("=")
        choices = _values(command, rest, name.removeprefix("--"))
        yield from (f"{name}={choice}" for choice in _beginning(choices, value))
    elif last.startswith("-"):
        names = {name for name, _ in _flags(command, rest)}
        given = {word.partition("=")[0] for word in rest}
        yield from _beginning((f"--{name}=" for name in names if f"--{name}" not in given), last)


def _beginning(words: Iterable[str], start: str) -> Iterator[str]:
    return (word for word in words if word.startswith(start))


def _flags(command: str, rest: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield name and type of each flag of a command, with those of the chosen plug-ins."""
    from proctor.commands.shared.all_flags import CONFIGS, PLAIN, command_configs, plain_command
    from proctor.commands.shared.verbs import VERBS, verb
    from proctor.config.base import plugin_sections
    from proctor.config.builder import own_flags, plugin_flags

    if command in CONFIGS:
        words = (word.partition("=") for word in rest if word.startswith("--"))
        given = {name.removeprefix("--"): value for name, _, value in words}
        yield "config_path", str
        for cls in command_configs(command):
            for flag in own_flags(cls):
                yield flag.name, flag.inner
            for section in plugin_sections(cls):
                for flag in plugin_flags(cls, section, given.get(f"{section}.type")):
                    yield flag.name, flag.inner
        return
    if command in PLAIN:
        found = plain_command(command).all_flags()
    elif command in VERBS and rest and rest[0] in VERBS[command]:
        found = verb(command, rest[0]).all_flags()
    else:
        found = []
    for one in found:
        yield one.flag.name, one.flag.inner


def _values(command: str, rest: Sequence[str], name: str) -> list[str]:
    """Return the values that a flag can have, if they can be listed."""
    from proctor.commands.shared.all_flags import CONFIGS, command_configs
    from proctor.config.base import plugin_sections
    from proctor.config.builder import known_types

    for cls in command_configs(command) if command in CONFIGS else ():
        for section, marked in plugin_sections(cls).items():
            if name == f"{section}.type":
                return known_types(cls, marked)
    for kind in (kind for known, kind in _flags(command, rest) if known == name):
        if kind is bool:
            return ["true", "false"]
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return [str(choice.value) for choice in kind]
    return []  # the shell completes file names
