"""Hand-written run folders, for tests of reports and comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord
from proctor.runs.records import PlannedTask, SessionPlan
from proctor.types import Outcome, Perturbation

BEGAN = 1_700_000_000.0
RECORD = RunRecord(
    given={"policy.type": "random", "env.type": "fake", "eval.n_episodes": "4"},
    resolved={"policy": {"type": "random"}, "env": {"type": "fake"}, "seed": 1000},
    protocol={"benchmark": {"type": "fake", "horizon": 50}, "policy": {"type": "random"}},
    versions={"python": "3.11.7", "proctor": "0.1.0"},
    machine={"platform": "Linux", "usable_cores": 2},
    sessions=[BEGAN],
    planned_episodes=8,
    history=[SessionPlan(BEGAN, 0, 8, 0, "never", None)],
)


def episode(task_id: int, index: int, outcome: Outcome, *, suite: str = "point") -> EpisodeRecord:
    """Return an episode that began two seconds after the one before it, on worker ``task_id``."""
    ran = outcome.counts
    start = BEGAN + 1 + 2 * index
    return EpisodeRecord(
        suite=suite,
        task=f"{suite}-{task_id}",
        task_id=task_id,
        episode_index=index,
        seed=1000 + index,
        outcome=outcome,
        success_once=outcome is Outcome.SUCCESS if ran else None,
        success_at_end=outcome is Outcome.SUCCESS if ran else None,
        steps=10 * (index + 1) if ran else None,
        sum_reward=-1.5 * index if ran else None,
        max_reward=0.5 if ran else None,
        start_time=start if ran else start + 1.5,
        end_time=start + 1.5,
        worker=task_id,
        attempts=1 if ran else 3,
        renders=4 if ran else None,
        clipped_steps=0 if ran else None,
        open_s=0.5 if ran and index == 0 else 0.0 if ran else None,
        sim_s=0.6 if ran else None,
        render_s=0.3 if ran else None,
        wait_s=0.4 if ran else None,
        digest=f"{task_id:016x}{index:016x}" if outcome.is_complete else None,
        error=None if outcome.is_complete else f"the simulator broke at {task_id}/{index}",
    )


def eight_episodes() -> list[EpisodeRecord]:
    """Return two tasks of four episodes: 3/4 succeed, and 1/3 beside an error."""
    won, lost, broke = Outcome.SUCCESS, Outcome.FAILURE, Outcome.ERROR
    outcomes = ((won, won, lost, won), (lost, broke, won, lost))
    return [
        episode(task_id, index, outcome)
        for task_id, row in enumerate(outcomes)
        for index, outcome in enumerate(row)
    ]


def write_run(folder: Path, rows: list[EpisodeRecord], record: RunRecord = RECORD) -> Path:
    """Write ``run.json`` and the journal of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write(record)
    lines = [msgspec.json.encode(row) + b"\n" for row in rows]
    (folder / JOURNAL_FILE).write_bytes(b"".join(lines))
    return folder


def infected(text: str) -> tuple[list[EpisodeRecord], RunRecord]:
    """Return a run in which every free string is ``text``, names of settings too."""
    rows = [
        replace(row, suite=text, task=text, world=text, digest=text, error=row.error and text)
        for row in eight_episodes()
    ]
    poison = {text: text, "nested": {text: [text]}}
    record = replace(
        RECORD,
        given={**poison, "policy.type": text},
        resolved=poison,
        protocol={"benchmark": {"type": text, **poison}, "policy": {"type": text}},
        versions={text: text},
        machine=poison,
    )
    return rows, record


_OUTCOMES = {"s": Outcome.SUCCESS, "f": Outcome.FAILURE, "e": Outcome.ERROR, "d": Outcome.DIVERGED}


def perturbed_run(
    outcomes: dict[tuple[str, int | None], str], clean: str, *, episodes: int | None = None
) -> tuple[list[EpisodeRecord], RunRecord]:
    """Return a run of one clean task and its perturbations, by dimension and level.

    Each text has an episode per letter: success, failure, diverged, error, or "-" for one that was
    not run.
    """
    cells = {None: clean, **outcomes}
    tasks, rows = [], []
    for cell, letters in cells.items():
        suite = "point" if cell is None else f"point@{cell[0]}-{cell[1]}"
        change = None if cell is None else Perturbation(*cell, "point", 0)
        planned = len(letters) if episodes is None else episodes
        tasks.append(PlannedTask(suite, 0, f"{suite}-0", "Reach.", 50, planned, change))
        rows += [
            episode(0, index, _OUTCOMES[letter], suite=suite)
            for index, letter in enumerate(letters)
            if letter != "-"
        ]
    return rows, replace(RECORD, tasks=tasks, planned_episodes=sum(t.episodes for t in tasks))
