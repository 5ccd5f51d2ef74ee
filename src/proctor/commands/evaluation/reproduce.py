"""``proctor reproduce``: evaluate a published checkpoint, and check the published success rate."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.commands.shared.arguments import split_arguments
from proctor.config.flags.command import CommandConfig, argument, build_command, run_command
from proctor.errors import UsageError, strip_control_codes
from proctor.number_text import interval_text, percent_text
from proctor.permissions import require_permission
from proctor.report.claims.claims import (
    CLAIM_FILE,
    Claim,
    check_claim,
    check_json,
    find_claim,
    read_claims,
)
from proctor.settings import setting
from proctor.stats.equivalence import DEFAULT_MARGIN, require_margin

_OWN = ("claims", "list", "margin")
_NOT_PROTOCOL = (
    "output_dir",
    "resume",
    "job_name",
    "policy.device",
    "eval.batch_size",
    "eval.n_episodes",
    "eval.use_async_envs",
    "cluster",
)
"""Flags that do not change what is measured, or only how precisely."""
_NOT_PROTOCOL_SECTIONS = ("video.", "wandb.", "eval.n_workers")


@dataclass(kw_only=True)
class ReproduceCommand(CommandConfig):
    """Evaluate a published checkpoint, and check the published success rate.

    NAME is a published result (proctor reproduce --list) or one of your own file (--claims). All
    flags of proctor eval are allowed too, such as --eval.batch_size, --eval.n_episodes and
    --output_dir; --resume completes an interrupted run. --policy.path=FOLDER uses a local copy.

    The verdict follows from the 95% interval of measured - published, which includes the sampling
    error of the published value if its number of episodes is known. The measured rate contradicts
    the published one if the interval excludes zero. It agrees if the interval contains zero and
    lies within --margin of it. Otherwise it is undecided, and the number of episodes that would
    decide is printed.

    Exit code 0: agrees, 3: contradicts, 4: undecided, 1: episodes had errors, 130: interrupted.
    """

    name: str | None = field(
        default=None, metadata=argument("NAME", "name of the published result", least=0)
    )
    list: bool = setting(False, "list the published results with their sources")
    claims: Path | None = setting(
        None,
        "YAML or JSON file of claims to use instead of Proctor's (default: published results "
        "that come with Proctor)",
        placeholder="FILE",
    )
    margin: float = setting(
        DEFAULT_MARGIN, "largest difference of success rates that still agrees (0.1: 10 points)"
    )
    eval_flags: dict[str, str] = field(default_factory=dict, metadata={"hidden": True})
    """The other flags: those of ``proctor eval``."""

    @classmethod
    def parse(cls, prog: str, words: Sequence[str]) -> ReproduceCommand | None:
        """Build the command; flags that are not its own are those of ``proctor eval``."""
        from proctor.config.evaluation import EvalConfig

        if cls.answer_help(prog, words):
            return None
        words = ["--list=true" if word == "--list" else word for word in words]
        positional, flags = split_arguments(EvalConfig, words)
        own = {name: flags.pop(name) for name in _OWN if name in flags}
        command = build_command(cls, prog, positional, own)
        command.eval_flags = flags
        return command

    def validate(self) -> None:
        """Refuse a margin out of range, and a missing name."""
        require_margin(self.margin)
        if self.name is None and not self.list:
            raise UsageError(
                "which published result? proctor reproduce --list shows all", code="argument.count"
            )

    def run(self) -> int:
        """List the claims, or evaluate and print the verdict; return the exit code."""
        claims = read_claims(self.claims)
        if self.list or self.name is None:
            _show_claims(claims, ours=self.claims is None)
            return 0
        return self._reproduce(self.name, find_claim(claims, self.name))

    def _reproduce(self, name: str, claim: Claim) -> int:
        from proctor.commands.evaluation.eval import evaluate_and_show
        from proctor.report.run.run import load_run
        from proctor.runs.folder import write_json

        settings = self._settings(name, claim)
        for flag in _changed(claim, self.eval_flags):
            line = f"note: --{flag} is not as in the published evaluation"
            print(strip_control_codes(line), file=sys.stderr)
        again = f"proctor reproduce {shlex.quote(name)}"
        if self.claims is not None:
            again += f" --claims={shlex.quote(str(self.claims))}"
        prepared, code = evaluate_and_show(settings, resume_as=again)
        if code > 1:  # interrupted, perhaps before the first episode
            return code
        run = load_run(prepared.folder.path)
        if not run.complete and run.stopped is None:
            return code
        check = check_claim(claim, run.tally, self.margin)
        known = run.contamination
        told = {"contamination": None if known is None else known.to_json()}
        write_json(run.path / CLAIM_FILE, check_json(name, claim, check) | told)
        print(strip_control_codes(f"{name} ({claim.source})"))
        print(check.reason)
        print(check)
        if code:
            return code
        return check.verdict.exit_code

    def _settings(self, name: str, claim: Claim) -> dict[str, Any]:
        """Merge the flags of the claim with those of the user, which count more."""
        from proctor.commands.evaluation.eval_settings import settings_from
        from proctor.commands.evaluation.eval_several import variants_of

        flags = self.eval_flags
        origin = f"the claim {name}" if self.claims is None else str(self.claims)
        of_claim = claim.settings()
        require_permission(of_claim, flags, origin)
        policy = {"policy.path", "policy.type"}
        if policy & flags.keys():
            of_claim = {key: value for key, value in of_claim.items() if key not in policy}
        merged = {**of_claim, **flags}
        if len(variants_of(merged)) > 1:
            raise UsageError(
                "a published result is checked by one run; give one policy and one seed",
                code="flag.invalid-value",
            )
        return settings_from(merged)


def _changed(claim: Claim, flags: Mapping[str, str]) -> list[str]:
    """Return the user's flags that change the protocol of the claim."""
    own = claim.settings()
    return [
        name
        for name, value in flags.items()
        if own.get(name) != value
        and name not in _NOT_PROTOCOL
        and not name.startswith(_NOT_PROTOCOL_SECTIONS)
    ]


def _show_claims(claims: Mapping[str, Claim], *, ours: bool) -> None:
    """Print every claim: what is evaluated, the published value with its interval, the source."""
    for name, claim in claims.items():
        known = f"{interval_text(claim.interval)} n={claim.n}"
        spread = "n unknown" if claim.n is None else known
        task = "" if claim.task is None else f" {claim.task}"
        lines = [
            f"{name}: {percent_text(claim.rate)} {spread}",
            f"  {claim.checkpoint or claim.policy} on {claim.benchmark}{task}",
            f"  source: {claim.source}{f', {claim.url}' if claim.url else ''}",
            *([f"  note: {claim.note}"] if claim.note else []),
            *([f"  {claim.run_by_us or 'not run by us'}"] if ours else []),
        ]
        for line in lines:
            print(strip_control_codes(line))


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(ReproduceCommand, "proctor reproduce", words)
