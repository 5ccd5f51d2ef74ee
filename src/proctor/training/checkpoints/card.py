"""Model card (README.md) of a policy on the Hub, with its evaluation and training command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from proctor.errors import UsageError, strip_control_codes
from proctor.fingerprint import flatten
from proctor.number_text import number_ranges
from proctor.policies.lerobot.adapter import ADAPTER_CONFIG
from proctor.policies.lerobot.checkpoint.location import read_json
from proctor.report.claims.reproduce import run_command, train_command
from proctor.report.run.run import load_run
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.training import (
    EVALUATIONS,
    EvaluationLogRow,
    TrainingDataset,
    TrainingRecord,
    read_training,
    read_training_log,
)
from proctor.system.hub.repositories import HUB_ID
from proctor.system.hub.uploads import without_local_paths
from proctor.training.checkpoints.saving import AVERAGED

_LOCAL_FLAGS = ("output_dir", "policy.path")


@dataclass(frozen=True)
class PolicyCard:
    """A policy of a training that is uploaded to the Hub."""

    run: Path
    """Folder of the training."""
    folder: Path
    """Folder of the policy: RUN/checkpoints/000200/pretrained_model."""
    repo: str

    @property
    def step(self) -> int:
        """Number of training steps."""
        return int(self.folder.parent.name)


def render_card(policy: PolicyCard, tags: Sequence[str], licence: str | None) -> str:
    """Return the text of the model card."""
    record = read_training(policy.run)
    if record is None:
        raise UsageError(
            f"{policy.run} is not a training folder (it has no train.json)",
            code="training.not-found",
        )
    kind = str(read_json(policy.folder / "config.json").get("type"))
    resolved = record.resolved
    dataset = str(flatten(resolved).get("dataset.repo_id") or "")
    head: dict[str, Any] = {
        "license": licence or "apache-2.0",
        "library_name": "lerobot",
        "pipeline_tag": "robotics",
        "tags": sorted({"robotics", "lerobot", "proctor", kind, *tags}),
        "model_name": kind,
    }
    if HUB_ID.fullmatch(dataset):
        head["datasets"] = [dataset]
    if (policy.folder / ADAPTER_CONFIG).is_file():
        adapter = read_json(policy.folder / ADAPTER_CONFIG)
        head["base_model"] = str(adapter.get("base_model_name_or_path"))
    return f"""\
---
{yaml.safe_dump(head, sort_keys=False, allow_unicode=True).rstrip()}
---

# {policy.repo}

{_what(kind, head)}, trained with Proctor for {policy.step:,} steps on \
{_datasets(policy, record)}.

## Evaluation

{_evaluation(policy, averaged=record.plays_averages)}

## Training

{_block(train_command(_portable_flags(record.given), resolved))}
{_changes(policy, record)}
{_table({"batch size": resolved.get("batch_size"), "seed": resolved.get("seed")} | record.versions)}

Loaded by `proctor eval --policy.path={policy.repo}` and by LeRobot.
"""


def _datasets(policy: PolicyCard, record: TrainingRecord) -> str:
    """Return the datasets that the policy was trained on, each with its first step."""
    used = [one for one in record.known_datasets if one.first_step < policy.step]
    if len(used) < 2:
        given = flatten(record.resolved)
        name = given.get("dataset.repo_id") or str(given.get("dataset.root"))
        return _code(name) + "".join(map(_episodes, used))
    names = [_code(one.repo_id or (one.root.typed if one.root else "")) for one in used]
    parts = [f"{name} ({one.size}){_episodes(one)}" for name, one in zip(names, used, strict=True)]
    later = (
        f"from step {one.first_step:,} on {part}"
        for one, part in zip(used[1:], parts[1:], strict=True)
    )
    return ", ".join([parts[0], *later])


def _episodes(dataset: TrainingDataset) -> str:
    """Return which episodes are trained on, if not all; empty in older records."""
    every = number_ranges(range(int(dataset.identity.get("episodes", 0))))
    return "" if dataset.episodes in (None, every) else f", episodes {dataset.episodes}"


def _changes(policy: PolicyCard, record: TrainingRecord) -> str:
    """Return the settings that resumed sessions changed, as rows."""
    changes = [one for one in record.changes if one.step < policy.step]
    return "".join(f"\nFrom step {one.step:,} on: {_code(one.settings)}\n" for one in changes)


def _what(kind: str, head: Mapping[str, Any]) -> str:
    base = head.get("base_model")
    return f"An adapter of {_code(base)} ({kind})" if base else f"A policy of type {_code(kind)}"


@dataclass(frozen=True)
class PolicyEvaluation:
    """The evaluation of an uploaded policy during its training."""

    row: EvaluationLogRow
    run: Path
    """Folder of the evaluation's run."""
    checkpoints: int
    """Number of evaluated checkpoints, of which this one was chosen."""

    @property
    def bias(self) -> str | None:
        """A sentence about the selection; None if one checkpoint was evaluated."""
        if self.checkpoints == 1:
            return None
        return (
            f"The best of {self.checkpoints} checkpoints on the same episodes: the selection "
            "biases this rate upwards"
        )


def find_evaluation(policy: PolicyCard, *, averaged: bool) -> PolicyEvaluation | None:
    """Return the evaluation of a policy; ``averaged``: the training evaluates averaged weights."""
    if averaged != (policy.folder.name == AVERAGED):
        return None
    lines = [line for line in read_training_log(policy.run) if isinstance(line, EvaluationLogRow)]
    evaluated = {line.step: line for line in lines if line.pc_success is not None}
    row = evaluated.get(policy.step)
    run = policy.run / EVALUATIONS / policy.folder.parent.name
    return None if row is None else PolicyEvaluation(row, run, len(evaluated))


def _evaluation(policy: PolicyCard, *, averaged: bool) -> str:
    """Return the section with success rate, interval and evaluation protocol."""
    found = find_evaluation(policy, averaged=averaged)
    record = None if found is None else RunFolder(found.run).read()
    if found is None or record is None:
        return "It was not evaluated."
    chosen = "\n" if found.bias is None else f"\n\n{found.bias}.\n"
    facts = {
        "success": found.row.rate_text,
        "benchmark": _benchmark(record),
        "protocol": record.fingerprint,
        "seed": record.resolved.get("seed"),
    }
    flags = _portable_flags(record.given)
    if (known := load_run(found.run).contamination) is not None:
        facts["training starts"] = known.text
    command = run_command({"policy.path": policy.repo, **flags}, record.resolved)
    return f"{_table(facts)}{chosen}\nThe same episodes again:\n\n{_block(command)}"


def _benchmark(record: RunRecord) -> str:
    env = flatten({"env": record.resolved.get("env") or {}})
    return " ".join(str(env[name]) for name in ("env.type", "env.task") if env.get(name))


def _portable_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are valid on other machines."""
    flags = {name: value for name, value in flatten(given).items() if name not in _LOCAL_FLAGS}
    return {name: without_local_paths(value) for name, value in flags.items()}


def _table(facts: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {name} | {_code(value)} |" for name, value in facts.items())
    return f"| | |\n|---|---|\n{rows}"


def _code(value: Any) -> str:
    plain = (
        strip_control_codes(str(without_local_paths(str(value))), 300)
        .replace("`", "'")
        .replace("|", "/")
    )
    return f"`{plain}`"


def _block(command: str) -> str:
    return f"```\n{strip_control_codes(command, 4000).replace('```', '')}\n```"
