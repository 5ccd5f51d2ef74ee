"""The dimension ``language``: paraphrases of a task's instruction, further away at each level.

A paraphrase depends on the instruction and the level only, since an instruction belongs to a task.
"""

from __future__ import annotations

import re

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.perturbations.base import Dimension
from proctor.benchmarks.perturbations.paraphrases import PARAPHRASES
from proctor.types import Task

_VERBS = (
    (r"\bpick up\b", "grasp"),
    (r"\bplace (it|them)\b", r"set \1 down"),
    (r"\bput (it)\b", r"set \1 down"),
    (r"\bput both\b", "set both"),
    (r"\bput\b", "set"),
    (r"\bplace\b", "lay"),
    (r"\bopen\b", "pull open"),
    (r"\bclose\b", "shut"),
    (r"\bturn on\b", "switch on"),
    (r"\bturn off\b", "switch off"),
    (r"\bpush (?=[^.]*\bbutton\b)", "press "),
    (r"\bpush\b", "slide"),
    (r"\bstack\b", "pile"),
)
_WHERE = r"(on top of|on|in|into|onto|under|to the) (.+)"
_GOALS = (
    (re.compile(rf"pick up (.+) and (?:place|put) it {_WHERE}"), r"\1 should end up \2 \3"),
    (re.compile(r"stack (.+?) on (.+)"), r"\1 should end up on \2"),
    (re.compile(rf"(?:put|place|push) both (.+) {_WHERE}"), r"\1 should both end up \2 \3"),
    (re.compile(rf"(?:put|place) them {_WHERE}"), r"both should end up \1 \2"),
    (re.compile(rf"(?:put|place|push) (.+) {_WHERE}"), r"\1 should end up \2 \3"),
    (re.compile(r"(?:put|place) (.+) inside"), r"\1 should end up inside"),
    (re.compile(r"open (.+)"), r"\1 should stand open"),
    (re.compile(r"close (.+)"), r"\1 should not stay open"),
    (re.compile(r"turn on (.*\b(?:stove|burner)\b.*)"), r"\1 should get hot"),
    (re.compile(r"turn off (.*\b(?:stove|burner)\b.*)"), r"\1 should get cold"),
    (re.compile(r"turn on (.+)"), r"\1 should be on"),
    (re.compile(r"turn off (.+)"), r"\1 should be off"),
)
_NEXT_CLAUSE = re.compile(r" and (?=(?:put|place them|close|open) )")


class Language(Dimension):
    """Another wording of the same task."""

    name = "language"
    levels = (
        "the instruction inside a polite sentence",
        "other verbs, and other nouns where a table has them",
        "a description of the goal, without the action",
    )
    unit = "distance from the instruction"

    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Refuse tasks without an instruction."""
        told = all(task.instruction.strip() for task in benchmark.tasks())
        return None if told else "its tasks have no instruction"

    def instruction(self, task: Task, level: int) -> str:
        """Return the paraphrase of the task's instruction."""
        return paraphrase(task.instruction, level)


def paraphrase(instruction: str, level: int) -> str:
    """Return the paraphrase of an instruction at a level from 1 to 3."""
    original = instruction.strip()
    if level == 1:
        return f"Could you please {_lowered(original).rstrip('.')}?"
    if original in PARAPHRASES:
        return PARAPHRASES[original][level - 2]
    return _other_verbs(original) if level == 2 else _goal(original)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _other_verbs(instruction: str) -> str:
    changed = _lowered(instruction)
    for pattern, other in _VERBS:
        changed = re.sub(pattern, other, changed)
    if changed == _lowered(instruction):
        changed = f"your task now is to {changed}"
    return changed


def _goal(instruction: str) -> str:
    """Describe the end of an instruction; one of unknown form is put into other words around it."""
    clauses = [instruction]
    if not re.match(r"pick up .+ and (?:place|put) it ", instruction):
        clauses = _NEXT_CLAUSE.split(_lowered(instruction))
    goals = [_goal_of_clause(clause) for clause in clauses]
    if any(goal is None for goal in goals):
        return f"there is one thing to do here: {_lowered(instruction)}"
    joined = ", and ".join(goal for goal in goals if goal is not None)
    return joined.replace(", and it should not stay open", ", which should not stay open")


def _goal_of_clause(clause: str) -> str | None:
    for pattern, goal in _GOALS:
        if found := pattern.fullmatch(clause):
            return found.expand(goal)
    return None
