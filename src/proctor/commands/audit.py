"""``proctor audit``: run a sample of finished episodes again, alone, and compare."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.commands.arguments import split_arguments
from proctor.commands.eval import evaluate_and_show
from proctor.commands.notices import print_notices
from proctor.errors import EXIT_HUNG_UP, EXIT_INTERRUPTED, UsageError, strip_control_codes

_USAGE = """\
proctor audit RUN [--episodes=10] [--policy.type=MODULE:NAME, where the run names such code]
proctor audit --policy.type=NAME --env.type=NAME [the flags of eval] [--episodes=10]

Runs a sample of a run's finished episodes again, one at a time, each on a fresh simulator in this
process, and reports every difference. The second form evaluates first. Exit code 1: they differ.
Exit code 2: the policy's files, the config or a version is not what it was, so nothing is run.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.commands.eval_settings import settings_from
    from proctor.config.evaluation import EvalConfig
    from proctor.config.flags import path_of
    from proctor.config.trust import CODE_NAMES, TRUST

    positional, flags = split_arguments(EvalConfig, words)
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    n_episodes = _positive("episodes", flags.pop("episodes", "10"))
    if len(positional) == 1 and flags.keys() <= {*CODE_NAMES, *TRUST}:
        return _audit_folder(path_of(positional[0]), n_episodes, flags)
    if positional:
        raise UsageError("audit takes one run folder, or the flags of an evaluation")
    prepared, code = evaluate_and_show(settings_from(flags))
    if code in (EXIT_HUNG_UP, EXIT_INTERRUPTED):
        return code
    return _audit_folder(prepared.folder.path, n_episodes, flags)


def _audit_folder(path: Path, n_episodes: int, flags: Mapping[str, str]) -> int:
    from rich.console import Console

    from proctor.config.builder import build
    from proctor.config.evaluation import EvalConfig
    from proctor.config.trust import TRUST, without_code_trust
    from proctor.evaluation.audit import audit, require_unchanged, why_not_exact
    from proctor.evaluation.notices import Notices
    from proctor.evaluation.run import prepare
    from proctor.report.run import load_run
    from proctor.runs.replayed import Replayed

    run = load_run(path)
    record = run.record
    if isinstance(record.resolved.get("record"), dict):  # an evaluation's is a folder at most
        raise UsageError(
            f"{path} is of a recording, whose policy may have been disturbed or relabelled: audit "
            "takes runs of proctor eval (proctor data check looks at its dataset)"
        )
    given = without_code_trust(record.given, flags, str(path))
    trust = {name: value for name, value in flags.items() if name in TRUST}
    here = {"eval.use_async_envs": False, "cluster": None, "output_dir": str(path)}
    settings = {**given, **trust, **here}
    prepared = prepare(build(EvalConfig, settings))
    require_unchanged(record, prepared.protocol(), path)
    why_not = why_not_exact(record, bit_exact=prepared.policy.spec.bit_exact)
    _say_what_is_compared(why_not, record.machine)
    print_notices(Notices(prepared.benchmark.warnings), Console(stderr=True))
    console = Console()

    def show(replay: Replayed) -> None:
        row, differences = replay.recorded, replay.differences
        verdict = "differs: " + ", ".join(differences) if differences else "same"
        line = strip_control_codes(f"{row.task} episode {row.episode_index}: {verdict}")
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    exact = why_not is None
    rollout, policy = prepared.settings(), prepared.policy
    replays = audit(rollout, policy, prepared.plan, run.rows, n_episodes, show, exact=exact)
    if not replays:
        raise UsageError(f"{path} holds no finished episode to audit")
    different = sum(bool(replay.differences) for replay in replays)
    console.print(
        f"{len(replays)} episodes run again, {different} different",
        style="bold",
        highlight=False,
    )
    return 1 if different else 0


def _say_what_is_compared(why_not_exact: str | None, machine: Mapping[str, Any]) -> None:
    """Say where less than all bits is compared, or where they may differ by the machine."""
    from proctor.runs.replayed import RETURN_TOLERANCE
    from proctor.system.platform_info import torch_hardware

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


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise UsageError(f"--{name} must be a whole number of at least 1, got {text!r}")
    return int(text)
