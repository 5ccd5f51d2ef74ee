"""Paraphrases of --perturb=language, over the instructions of every suite."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict

import pytest

from proctor.benchmarks.libero.tasks import SUITES, instruction_of, task_names
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.benchmarks.perturbations.language import paraphrase
from proctor_worker.worlds import calvin, maniskill, rlbench, robocasa, robosuite, so101_nexus
from proctor_worker.worlds.robotwin import task_horizons


def words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


LEVELS = (1, 2, 3)
SUITE_INSTRUCTIONS = {
    "metaworld": [task.instruction for task in TASKS],
    "calvin": list(calvin.INSTRUCTIONS.values()),
    "robotwin": [name.replace("_", " ") for name in task_horizons()],
    **{
        world.__name__: [row.instruction for row in world.TASKS.values()]
        for world in (maniskill, rlbench, robocasa, robosuite, so101_nexus)
    },
}
if importlib.util.find_spec("libero") is not None:
    SUITE_INSTRUCTIONS |= {
        suite: [instruction_of(name) for name in task_names()[suite]] for suite in SUITES
    }
VERBS = {
    "get",
    "grasp",
    "open",
    "press",
    "pull",
    "push",
    "reach",
    "set",
    "slide",
    "stand",
    "switch",
}
SMALL_WORDS = frozenset(
    words(
        "a an and any as at be belongs by do down end from further here i in into is it its me "
        "more need not of off on one onto or other out over so should that the there thing to up "
        "with you"
    )
)
suites = pytest.mark.parametrize("suite", SUITE_INSTRUCTIONS)


@suites
def test_no_paraphrase_says_what_another_task_is_told(suite: str) -> None:
    told: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for instruction in SUITE_INSTRUCTIONS[suite]:
        for text in (instruction, *(paraphrase(instruction, level) for level in LEVELS)):
            told[words(text)].add(" ".join(words(instruction)))
    assert [meant for meant in told.values() if len(meant) > 1] == []


@suites
def test_no_paraphrase_names_a_thing_that_only_another_task_has(suite: str) -> None:
    every = [set(words(text)) for text in SUITE_INSTRUCTIONS[suite]]
    known = set().union(*every) - VERBS - SMALL_WORDS
    odd = {
        (instruction, level): named
        for instruction in SUITE_INSTRUCTIONS[suite]
        for level in LEVELS
        if (named := set(words(paraphrase(instruction, level))) & known - set(words(instruction)))
    }
    assert odd == {}


@pytest.mark.parametrize(
    ("instruction", "level", "told"),
    [
        (
            "stack the black bowl at the front on the black bowl in the middle",
            3,
            "the black bowl at the front should end up on the black bowl in the middle",
        ),
        (
            "put the black bowl in the bottom drawer of the cabinet and close it",
            3,
            "the black bowl should end up in the bottom drawer of the cabinet, "
            "which should not stay open",
        ),
        ("turn on the sink faucet", 3, "the sink faucet should be on"),
        ("turn off the burner of the stove", 3, "the burner of the stove should get cold"),
        ("push the maroon button", 2, "press the maroon button"),
    ],
)
def test_a_template_keeps_the_task(instruction: str, level: int, told: str) -> None:
    assert paraphrase(instruction, level) == told
