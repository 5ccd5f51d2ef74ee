"""``proctor audit``: run a sample of finished episodes again, one by one, and compare."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.commands.shared.arguments import split_arguments
from proctor.config.flags.command import CommandConfig, argument, build_command, run_command
from proctor.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    UsageError,
    did_you_mean,
    strip_control_codes,
)
from proctor.permissions import NAMES, require_permission
from proctor.settings import setting

_HERE = {
    "eval.use_async_envs": "false",
    "cluster": "none",
    "live_host": "127.0.0.1",
    "wandb.enable": "false",
}
"""Settings of the run that an audit replaces: it runs in this process and publishes nothing."""


@dataclass(kw_only=True)
class AuditCommand(CommandConfig):
    """Run a sample of a run's finished episodes again and report every difference.

    Episodes run one at a time, each on a fresh simulator in this process. With RUN, the only other
    flags are those that permit something, such as --trust_remote_code, where the run needs them.
    Without RUN, give the flags of an evaluation (proctor eval --help): the policy is evaluated
    first, then audited.

    Exit code 1: episodes differ. Exit code 2: the policy's files, the config or a version changed,
    so no episode was run.
    """

    folder: Path | None = field(
        default=None, metadata=argument("RUN", "folder of the run to audit", least=0)
    )
    episodes: int = setting(10, "number of episodes to run again", least=1)
    eval_flags: dict[str, str] = field(default_factory=dict, metadata={"hidden": True})
    """The other flags: those of ``proctor eval``."""

    @classmethod
    def parse(cls, prog: str, words: Sequence[str]) -> AuditCommand | None:
        """Build the command; flags that are not its own are those of ``proctor eval``."""
        from proctor.config.evaluation import EvalConfig

        if cls.answer_help(prog, words):
            return None
        positional, flags = split_arguments(EvalConfig, list(words))
        own = {"episodes": flags.pop("episodes")} if "episodes" in flags else {}
        command = build_command(cls, prog, positional, own)
        command.eval_flags = flags
        known = ("episodes", *NAMES)
        other = next((name for name in flags if name not in known), None)
        if command.folder is not None and other is not None:
            near = did_you_mean(other, known)
            raise UsageError(
                f"--{other}: audit takes one run folder, or the flags of an evaluation{near}",
                code="flag.conflict",
            )
        return command

    def run(self) -> int:
        """Audit the run, or evaluate and audit, and return the exit code."""
        from proctor.commands.evaluation.eval import evaluate_and_show
        from proctor.commands.evaluation.eval_settings import settings_from

        if self.folder is not None:
            return _audit_folder(self.folder, self.episodes, self.eval_flags)
        prepared, code = evaluate_and_show(settings_from(self.eval_flags))
        if code in (EXIT_HUNG_UP, EXIT_INTERRUPTED):
            return code
        return _audit_folder(prepared.folder.path, self.episodes, self.eval_flags)


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(AuditCommand, "proctor audit", words)


def _audit_folder(path: Path, n_episodes: int, flags: Mapping[str, str]) -> int:
    from rich.console import Console

    from proctor.commands.shared.notices import print_notices
    from proctor.config.builder import build
    from proctor.config.evaluation import EvalConfig
    from proctor.config.flags.removed_flags import without_removed_flags
    from proctor.evaluation.audit import audit, require_unchanged, why_not_exact
    from proctor.evaluation.notices import Notices
    from proctor.evaluation.preparing import prepare
    from proctor.report.run.run import load_run
    from proctor.runs.paths import settings_with_paths
    from proctor.runs.replay import EpisodeReplay

    run = load_run(path)
    record = run.record
    if record.is_recording:
        raise UsageError(
            f"{path} is of a recording, whose policy may have been disturbed or relabelled: audit "
            "takes runs of proctor eval (proctor data check looks at its dataset)",
            code="run.not-an-evaluation",
        )
    located = settings_with_paths(record.given, record.paths, path, flags)
    given = without_removed_flags(located)
    require_permission(given, {**flags, **_HERE}, str(path), places=())
    settings = {**given, **flags, **_HERE, "output_dir": str(path)}
    prepared = prepare(build(EvalConfig, settings))
    require_unchanged(record, prepared.protocol(), path)
    why_not = why_not_exact(record, bit_exact=prepared.policy.spec.bit_exact)
    _say_what_is_compared(why_not, record.machine)
    print_notices(Notices(tuple(prepared.warnings)), Console(stderr=True))
    console = Console()

    def show(replay: EpisodeReplay) -> None:
        row, differences = replay.recorded, replay.differences
        verdict = "differs: " + ", ".join(differences) if differences else "same"
        task = " / ".join(dict.fromkeys((row.suite, row.task)))  # a suite says which perturbation
        line = strip_control_codes(f"{task} episode {row.episode_index}: {verdict}")
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    exact = why_not is None
    rollout, policy = prepared.settings(), prepared.policy
    replays = audit(rollout, policy, prepared.plan, run.rows, n_episodes, show, exact=exact)
    if not replays:
        raise UsageError(f"{path} holds no finished episode to audit", code="run.empty")
    different = sum(bool(replay.differences) for replay in replays)
    console.print(
        f"{len(replays)} episodes run again, {different} different",
        style="bold",
        highlight=False,
    )
    return 1 if different else 0


def _say_what_is_compared(why_not_exact: str | None, machine: Mapping[str, Any]) -> None:
    """Print what is compared if not all bits are, and how this machine differs from the run's."""
    from proctor.runs.replay import RETURN_TOLERANCE
    from proctor.system.platform.platform_info import torch_hardware

    if why_not_exact is not None:
        print(
            f"digests are not compared ({why_not_exact}): outcomes must be the same, and returns "
            f"within {RETURN_TOLERANCE:.0%}"
        )
        return
    for name, here in torch_hardware().items():
        if name in machine and machine[name] != here:
            line = f"note: {name} was {machine[name]!r}, here {here!r}: the last bits may differ"
            print(strip_control_codes(line), file=sys.stderr)
