"""The command line: ``proctor eval | audit | info``. The only module that knows everything.

Heavy modules are imported inside the commands: ``proctor --help`` must answer at once.
"""

from __future__ import annotations

import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.errors import PolicyError, ProctorError, UsageError, WorkerError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from proctor.evaluation import Evaluation, Prepared
    from proctor.recorders.base import Recorder
    from proctor.recorders.journal import EpisodeRow

_EXIT_ERRORED_EPISODES, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130

_OVERVIEW = """\
Proctor examines robot policies in simulation.

  proctor eval   evaluate a policy on a benchmark: a success rate with its interval
  proctor audit  run a sample of a run's episodes again, one by one, and compare
  proctor info   versions, cores, graphics and extras found on this machine

  proctor COMMAND --help  lists the flags of a command

Example:
  proctor eval --policy.type=expert --env.type=metaworld --env.task=reach-v3,push-v3 \\
               --eval.n_episodes=10 --output_dir=outputs/demo
"""
_EVAL_USAGE = """\
proctor eval --policy.type=NAME --env.type=NAME [--FLAG=VALUE ...]

Evaluates a policy. Results are written to the run folder as episodes end; a run that was stopped
is completed by: proctor eval --resume --output_dir=FOLDER
"""
_AUDIT_USAGE = """\
proctor audit RUN [--episodes=10]
proctor audit --policy.type=NAME --env.type=NAME [the flags of eval] [--episodes=10]

Runs a sample of a run's finished episodes again, one at a time, each on a fresh simulator in this
process, and reports every difference. The second form evaluates first. Exit code 1: they differ.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "eval": _eval,
        "audit": _audit,
        "info": _info,
    }
    try:
        if not words or words[0] in ("--help", "-h", "help"):
            print(_OVERVIEW, end="")
            return 0
        if words[0] == "--version":
            from proctor import __version__

            print(f"proctor {__version__}")
            return 0
        if words[0] not in commands:
            raise UsageError(
                f"unknown command {words[0]!r}{did_you_mean(words[0], commands)} "
                f"(commands: {', '.join(commands)})"
            )
        return commands[words[0]](words[1:])
    except ProctorError as error:
        _explain(error)
        return _EXIT_USAGE


def _explain(error: ProctorError) -> None:
    """Print one line; where a policy or a worker broke by itself, its traceback before it."""
    if isinstance(error, PolicyError | WorkerError) and error.__cause__ is not None:
        cause = error.__cause__
        if isinstance(cause, WorkerError):
            print(cause, file=sys.stderr)
        else:
            traceback.print_exception(cause)
    print(f"proctor: error: {error}", file=sys.stderr)


def _eval(words: list[str]) -> int:
    given = _flags(words, extra=())
    if "help" in given:
        print(_EVAL_USAGE + "\n" + _flags_help(given), end="")
        return 0
    return _evaluate(_settings(given))[1]


def _evaluate(settings: dict[str, Any]) -> tuple[Prepared, int]:
    from rich.console import Console

    from proctor.config import config_from
    from proctor.evaluation import prepare, run_evaluation
    from proctor.recorders.progress import Counts, Progress

    prepared = prepare(config_from(settings))
    path = prepared.folder.path

    def make_recorders(prepared: Prepared, before: Sequence[EpisodeRow]) -> list[Recorder]:
        counts = Counts()
        for row in before:
            counts.add(row.outcome)
        console = Console(stderr=True)
        console.print(_headline(prepared, len(before)), highlight=False, soft_wrap=True)
        return [Progress(len(prepared.plan), counts, console)]

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        evaluation = run_evaluation(prepared, settings, make_recorders)
    except KeyboardInterrupt:
        _say_how_to_resume(path, len(prepared.plan))
        return prepared, _EXIT_INTERRUPTED
    _show(evaluation, Console())
    return prepared, _EXIT_ERRORED_EPISODES if evaluation.tally.errors else 0


def _headline(prepared: Prepared, done: int) -> str:
    """Say what is about to run."""
    n_tasks = len({spec.task for spec in prepared.plan})
    resumed = f" ({done} done before)" if done else ""
    return (
        f"{prepared.policy.name} on {prepared.benchmark.name}: {len(prepared.plan)} episodes of "
        f"{n_tasks} task{'s' * (n_tasks != 1)}{resumed} -> {prepared.folder.path}"
    )


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _say_how_to_resume(path: Path, planned: int) -> None:
    from proctor.recorders.journal import read_journal

    done = len(read_journal(path).rows)
    print(
        f"interrupted: {done} of {planned} episodes are in {path}; continue with\n"
        f"  proctor eval --resume --output_dir={shlex.quote(str(path))}",
        file=sys.stderr,
    )


def _show(evaluation: Evaluation, console: Console) -> None:
    from proctor.report.tables import results_table

    console.print(results_table(evaluation.rows))
    console.print(f"\nsuccess {evaluation.tally}", style="bold", highlight=False)
    clipped = sum(bool(row.clipped_steps) for row in evaluation.rows)
    if clipped:
        console.print(
            f"note: in {clipped} episodes the policy left the action range; "
            "such actions are clipped as the benchmark defines",
            highlight=False,
            soft_wrap=True,
        )
    renders = sum(row.renders or 0 for row in evaluation.rows)
    console.print(f"{evaluation.tally.steps:,} steps, {renders:,} images rendered", highlight=False)
    console.print(f"results: {evaluation.path}", highlight=False, soft_wrap=True)


def _audit(words: list[str]) -> int:
    from proctor.flags import split_argv

    positional, flags = split_argv(words, _SWITCHES)
    if "help" in flags:
        print(_AUDIT_USAGE, end="")
        return 0
    n_episodes = _positive("episodes", flags.pop("episodes", "10"))
    if len(positional) == 1 and not flags:
        return _audit_folder(Path(positional[0]), n_episodes)
    if positional:
        raise UsageError("audit takes one run folder, or the flags of an evaluation")
    prepared, code = _evaluate(_settings(_flags([f"--{k}={v}" for k, v in flags.items()], ())))
    return code if code == _EXIT_INTERRUPTED else _audit_folder(prepared.folder.path, n_episodes)


def _audit_folder(path: Path, n_episodes: int) -> int:
    from rich.console import Console

    from proctor.audit import Comparison, audit
    from proctor.config import config_from
    from proctor.evaluation import prepare
    from proctor.recorders.journal import read_journal
    from proctor.run import RunFolder

    record = RunFolder(path).read()
    if record is None:
        raise UsageError(f"{path} is not a run folder (it has no run.json)")
    rows = read_journal(path).rows
    prepared = prepare(config_from({**record.given, "output_dir": str(path)}))
    console = Console()

    def show(comparison: Comparison) -> None:
        row, differences = comparison.recorded, comparison.differences
        verdict = "differs: " + ", ".join(differences) if differences else "same"
        console.print(f"{row.task} episode {row.episode_index}: {verdict}", highlight=False)

    comparisons = audit(prepared, rows, n_episodes, show)
    if not comparisons:
        raise UsageError(f"{path} holds no finished episode to audit")
    different = sum(bool(comparison.differences) for comparison in comparisons)
    console.print(
        f"{len(comparisons)} episodes run again, {different} different",
        style="bold",
        highlight=False,
    )
    return 1 if different else 0


def _info(words: list[str]) -> int:
    if words and words[0] in ("--help", "-h"):
        print("proctor info: prints versions, cores, graphics and extras found on this machine")
        return 0
    if words:
        raise UsageError(f"info takes no arguments, got {words[0]!r}")
    from proctor.info import info_lines

    for line in info_lines():
        print(line)
    return 0


_SWITCHES = {"help", "resume", "eval.use_async_envs"}


def _flags(words: list[str], extra: Sequence[str]) -> dict[str, str]:
    """Read flags, of which none may stand alone as a word."""
    from proctor.flags import split_argv

    words = ["--help" if word == "-h" else word for word in words]
    positional, given = split_argv(words, _SWITCHES)
    if positional:
        raise UsageError(f"unexpected word {positional[0]!r} (flags are written --name=value)")
    return given


def _settings(given: dict[str, str]) -> dict[str, Any]:
    """Join what a resumed run was given, the config file and the flags; the later ones win."""
    from proctor.flags import read_config_file
    from proctor.run import RunFolder

    settings: dict[str, Any] = dict(given)
    if "config_path" in settings:
        settings = {**read_config_file(Path(settings.pop("config_path"))), **settings}
    if str(settings.get("resume", "false")).lower() == "true":
        if "output_dir" not in settings:
            raise UsageError("--resume needs --output_dir=FOLDER, the run to complete")
        earlier = RunFolder(Path(settings["output_dir"])).read()
        if earlier is None:
            raise UsageError(f"--resume: {settings['output_dir']} holds no run to resume")
        settings = {**earlier.given, **settings}
    return settings


def _flags_help(given: dict[str, str]) -> str:
    """Return the help of all flags, or of the chosen policy and benchmark only."""
    from proctor import registry
    from proctor.config import common_flags
    from proctor.flags import flags_of, help_lines

    lines = ["Flags of every evaluation:", *help_lines(common_flags())]
    lines += [
        "  --config_path=path",
        "      a YAML or JSON file of the same settings, nested; flags win",
    ]
    for kind, part in (("benchmarks", "env"), ("policies", "policy")):
        chosen = given.get(f"{part}.type")
        for name in [chosen] if chosen else registry.known(kind):
            find: Any = registry.find_benchmark if part == "env" else registry.find_policy
            plugin = find(name)
            lines += ["", f"--{part}.type={name}: {plugin.summary}"]
            lines += help_lines(
                [f for f in flags_of(plugin.config, f"{part}.") if f.name != f"{part}.type"]
            )
    return "\n".join(lines) + "\n"


def _positive(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--{name} must be a whole number of at least 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
