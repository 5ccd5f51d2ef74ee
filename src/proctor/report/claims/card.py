"""The result card of a run: its claim and what is needed to check it, as JSON and as Markdown.

The JSON file is what ``proctor compare CARD RUN`` reads (``card_file``). The Markdown file is for
papers, READMEs and model cards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError, strip_control_codes
from proctor.number_text import interval_text, percent_text
from proctor.report.claims.reproduce import run_command
from proctor.report.html.formatting import settings_rows, utc_date
from proctor.report.run.history import UNKNOWN
from proctor.report.run.page_data import title
from proctor.report.run.run import Run
from proctor.report.run.starts import start_warnings
from proctor.report.run.stopped import round_warnings
from proctor.report.run.summary import STRATIFIED, Tally, by_task
from proctor.runs.folder import write_json, write_run_file
from proctor.runs.journal import EpisodeRecord
from proctor.runs.records import FiniteFloat, NonNegativeInt, Seconds
from proctor.stats.independent_units import RateCounts
from proctor.stats.rates import Interval
from proctor.system.hub.uploads import without_local_paths
from proctor.types import MAX_EPISODES, EpisodeKey, Outcome

CARD_FORMAT = 2
CARD_NAME = "card"
_LETTERS = {
    Outcome.SUCCESS: "s",
    Outcome.FAILURE: "f",
    Outcome.DIVERGED: "d",
    Outcome.ERROR: "e",
    Outcome.ENDED: "n",
}
_BACKTICKS = re.compile("`+")

Text = Annotated[str, msgspec.Meta(max_length=2000)]
_Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Letters = Annotated[str, msgspec.Meta(max_length=MAX_EPISODES, pattern="^[sfden]+$")]


@dataclass(frozen=True)
class CardTally:
    """The counts of a set of episodes, and the rate that follows from them."""

    successes: NonNegativeInt
    episodes: NonNegativeInt
    diverged: NonNegativeInt
    errors: NonNegativeInt
    worlds: NonNegativeInt
    """Independent starts of the completed episodes. The name is that of format 1."""
    effective_n: Annotated[float, msgspec.Meta(ge=0, le=MAX_EPISODES)]
    """The effective sample size of episodes that share starts."""
    rate: _Part | None
    """None: the environment defines no success, or no episode was completed."""
    interval: tuple[_Part, _Part] | None
    mean_reward: FiniteFloat | None
    mean_max_reward: FiniteFloat | None
    mean_steps_to_success: FiniteFloat | None
    scores: dict[Text, FiniteFloat | None] = field(default_factory=dict)
    """Mean of each score of the benchmark, by name."""
    text: Text = ""
    suite_interval: tuple[_Part, _Part] | None = None
    """The interval of the mean over tasks like these."""

    @property
    def counts(self) -> RateCounts:
        """The counts behind the rate."""
        return RateCounts(self.successes, self.episodes, self.effective_n)

    @classmethod
    def of(cls, added: Tally) -> CardTally:
        """Return the counts of a tally."""
        return cls(
            successes=added.successes,
            episodes=added.episodes,
            diverged=added.diverged,
            errors=added.errors,
            worlds=added.units.distinct,
            effective_n=added.units.effective_n,
            rate=added.rate,
            interval=added.interval,
            suite_interval=added.suite_interval,
            mean_reward=added.avg_sum_reward,
            mean_max_reward=added.avg_max_reward,
            mean_steps_to_success=added.mean_steps_to_success,
            scores=dict(added.scores),
            text=str(added),
        )


@dataclass(frozen=True)
class CardTask:
    """One task of the card: its tally, and the outcome of each episode."""

    suite: Text
    task_id: NonNegativeInt
    name: Text
    instruction: str | None
    outcomes: list[tuple[NonNegativeInt, _Letters]]
    """The first index and the letters of each range of episodes: s success, f failure, d diverged,
    e error, n not judged."""
    tally: CardTally
    perturbed: bool = False
    """Whether it is the perturbed variant of a task. Then the card's rate leaves it out, unless
    every task is perturbed."""


@dataclass(frozen=True)
class Card:
    """The claim of a run: rates with intervals, and everything that defines its episodes."""

    title: Text
    date: Text | None
    """When the run started, in UTC."""
    started: Seconds | None
    """The same in seconds since 1970: it tells the card's own run from a repetition."""
    overall: CardTally
    tasks: list[CardTask]
    interval: Text
    """The kind of the 95% intervals."""
    stopped: str | None
    """Why a stop rule ended the run early."""
    warnings: list[str]
    fingerprint: Text
    protocol: dict[str, Any]
    command: str
    """The command that repeats the run."""
    bit_reproducible: bool | None
    versions: dict[str, str]
    history: str = UNKNOWN
    """How the run came to its number of episodes."""
    contamination: Text | None = None
    """Which starts were in the policy's training data; None: no training made it, or the card is
    of an older version."""
    kind: str = "proctor-card"
    format: NonNegativeInt = CARD_FORMAT

    @property
    def clean_tasks(self) -> list[CardTask]:
        """The tasks that the card's rate is about."""
        return [task for task in self.tasks if not task.perturbed] or self.tasks

    @property
    def task_counts(self) -> list[RateCounts]:
        """The counts of each clean task; empty if the tasks are variants that share starts."""
        tallies = [task.tally for task in self.clean_tasks if task.tally.episodes]
        if sum(added.worlds for added in tallies) != self.overall.worlds:
            return []
        return [added.counts for added in tallies]

    @property
    def outcomes(self) -> dict[EpisodeKey, Outcome]:
        """The outcome of every episode that the card's rate is about."""
        return self.outcomes_of(self.clean_tasks)

    def outcomes_of(self, tasks: Iterable[CardTask]) -> dict[EpisodeKey, Outcome]:
        """Return the outcome of every episode of some of the tasks."""
        known = {letter: outcome for outcome, letter in _LETTERS.items()}
        return {
            (task.suite, task.task_id, index): known[letter]
            for task in tasks
            for first, letters in task.outcomes
            for index, letter in enumerate(letters, first)
        }


def card_of(run: Run) -> Card:
    """Return the card of a complete run."""
    if not run.tally.episodes:
        raise UsageError(f"{run.path} has no finished episode to make a card of", code="run.empty")
    if not run.complete and run.stopped is None:
        raise UsageError(
            f"{run.path} is incomplete ({len(run.rows)} of {run.planned} episodes), so its rate is "
            f"no claim; complete it first: proctor eval --resume --output_dir={run.path}",
            code="run.incomplete",
        )
    record = run.record
    instructions = {(task.suite, task.task_id): task.instruction for task in record.tasks or ()}
    rows = by_task(run.rows)
    return Card(
        title=title(record),
        date=utc_date(record.sessions[0]) if record.sessions else None,
        started=record.sessions[0] if record.sessions else None,
        overall=CardTally.of(run.tally),
        tasks=[
            CardTask(
                task.suite,
                task.task_id,
                task.task,
                instructions.get((task.suite, task.task_id)),
                _outcomes(rows[task.suite, task.task_id]),
                CardTally.of(task.tally),
                perturbed=rows[task.suite, task.task_id][0].clean_task is not None,
            )
            for task in run.per_task
        ],
        interval=run.tally.interval_kind,
        stopped=run.stopped,
        warnings=start_warnings(run.rows) + round_warnings(run.rows, record.resolved),
        fingerprint=record.fingerprint,
        protocol=record.protocol,
        command=run_command(without_local_paths(record.pinned_given), record.resolved),
        bit_reproducible=record.bit_reproducible,
        versions=record.versions,
        history=run.history.text,
        contamination=None if run.contamination is None else run.contamination.text[:2000],
    )


def card_paths(folder: Path, path: Path | None = None) -> tuple[Path, Path]:
    """Return the Markdown and the JSON file of a card.

    ``path`` names both files: its suffix, ``.md`` or ``.json``, is replaced. Default: ``card.md``
    and ``card.json`` in the run folder.
    """
    path = path or folder / CARD_NAME
    stem = path.with_suffix("") if path.suffix in (".md", ".json") else path
    return stem.with_name(f"{stem.name}.md"), stem.with_name(f"{stem.name}.json")


def write_card(
    run: Run, path: Path | None = None, hub_entry: Callable[[Card], str] | None = None
) -> tuple[Path, Path]:
    """Write the card as Markdown and JSON, and return both paths.

    ``path`` names both files, as in ``card_paths``. ``hub_entry`` returns the Hub's entry of the
    result, which the Markdown then shows.
    """
    card = card_of(run)
    text, values = card_paths(run.path, path)
    write_json(values, asdict(card))
    shown = card_markdown(card, run.to_markdown(history=False), values.name)
    if hub_entry is not None:
        entry = _fenced(hub_entry(card).rstrip(), "yaml")
        shown += f"\n## Evaluation results for the Hub\n\n{entry}\n"
    write_run_file(text, shown)
    return text, values


def card_markdown(card: Card, table: str, json_name: str) -> str:
    """Return the card as Markdown; ``table`` has the results, ``json_name`` is the JSON file."""
    headline = "Success"
    if card.clean_tasks[0].perturbed:
        headline = "Success, all perturbed"
    elif len(card.clean_tasks) < len(card.tasks):
        headline = "Success of the clean episodes"
    lines = [f"# {_inline(card.title)}", "", f"{_inline(headline)}: **{card.overall.text}**"]
    lines += [f"(95% interval: {_inline(card.interval)}; n: completed episodes).", ""]
    if card.interval == STRATIFIED:
        lines += ["The interval is about other episodes of these tasks.", ""]
    lines.append(f"{card.history[0].upper()}{_inline(card.history[1:])}.")
    lines += [f"Warning: {_inline(line)}." for line in card.warnings]
    lines += ["", table.replace("<", "&lt;").rstrip(), "", "## Reproduce", ""]
    lines += [_fenced(card.command, "sh"), "", f"To check a run against this card ({json_name}):"]
    lines += ["", _fenced(f"proctor compare {json_name} RUN", "sh"), ""]
    lines += ["## Protocol", "", f"Fingerprint `{card.fingerprint}`: the hash of the fields below."]
    if card.date is not None:
        lines[-1] += f" Run of {card.date}."
    fields = [f"{name}: {value}" for name, value in settings_rows(card.protocol)]
    return "\n".join([*lines, "", _fenced("\n".join(map(strip_control_codes, fields)))]) + "\n"


def tally_text(added: CardTally, interval: Interval | None) -> str:
    """Return a card's rate as ``71.3% [67.0, 75.3] n=450, 2 errors``, from its counts."""
    if added.rate is None or interval is None:
        return f"not judged n={added.episodes}" if added.episodes else "n/a"
    text = f"{percent_text(added.rate)} {interval_text(interval)} n={added.episodes}"
    if added.worlds != added.episodes:
        text += f" ({added.worlds} start{'s' * (added.worlds != 1)})"
    if added.diverged:
        text += f", {added.diverged} diverged"
    return text + (f", {added.errors} error{'s' * (added.errors != 1)}" if added.errors else "")


def _outcomes(rows: list[EpisodeRecord]) -> list[tuple[int, str]]:
    """Return the outcomes as ranges of consecutive indices."""
    ranges: list[tuple[int, str]] = []
    for row in sorted(rows, key=lambda row: row.episode_index):
        index, letter = row.episode_index, _LETTERS[row.outcome]
        if ranges and ranges[-1][0] + len(ranges[-1][1]) == index:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + letter)
        else:
            ranges.append((index, letter))
    return ranges


def _inline(text: str) -> str:
    """Return text that Markdown shows as it is."""
    shown = strip_control_codes(text)
    return re.sub(r"([\\`*\[\]<>#|])", r"\\\1", shown)


def _fenced(text: str, language: str = "") -> str:
    """Return a code block; its fence is longer than any in the text."""
    longest = max((len(found[0]) for found in _BACKTICKS.finditer(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
