"""LIBERO-plus's 10,030 tasks: what each one perturbs, its difficulty and its instruction.

The table is LIBERO-plus's own (``task_classification.json`` and the BDDL files' instructions of the
language tasks). Each suite starts with a line that has its name; each further line is one task:

    id of the LIBERO task, what its name adds to that task's, difficulty, instruction

separated by tabs. The instruction is there for language tasks only.
"""

from __future__ import annotations

import lzma
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from importlib import resources

from proctor.benchmarks.libero.prompt import Prompt
from proctor.benchmarks.libero.tasks import STANDARD_SUITES, instruction_of, task_names
from proctor.benchmarks.libero_plus.camera import View

_TABLE = "tasks.tsv.xz"
LEVELS = (1, 2, 3, 4, 5)
_VIEW = re.compile(r"_view_(\d+)_(\d+)_(\d+)_(\d+)_(\d+)_initstate_(\d+)(?:_noise_(\d+))?$")
_BROKEN = re.compile(r"here are \d+ variations")
"""An instruction that is a language model's preface, not a paraphrase."""


class Dimension(Enum):
    """What a task perturbs."""

    CAMERA = "camera"
    ROBOT = "robot"
    LANGUAGE = "language"
    LIGHT = "light"
    BACKGROUND = "background"
    NOISE = "noise"
    LAYOUT = "layout"


@dataclass(frozen=True)
class PlusTask:
    """One task of LIBERO-plus."""

    suite: str
    task_id: int
    """Position in LIBERO-plus's suite, from 0."""
    base_id: int
    """Id of the LIBERO task that it perturbs."""
    suffix: str
    """What its name adds to the LIBERO task's."""
    level: int | None
    """Difficulty, 1 to 5; None for 121 light tasks."""
    paraphrase: str | None = None
    """Instruction of a language task."""

    @property
    def base_name(self) -> str:
        """Name of the LIBERO task."""
        return task_names()[self.suite][self.base_id]

    @property
    def name(self) -> str:
        """Name in LIBERO-plus."""
        return self.base_name + self.suffix

    @cached_property
    def dimension(self) -> Dimension:
        """What the task perturbs, by its name."""
        if self.paraphrase is not None:
            return Dimension.LANGUAGE
        if self.noise:
            return Dimension.NOISE
        if self.init_pose:
            return Dimension.ROBOT
        if self._parameters is not None:
            return Dimension.CAMERA
        if self.suffix.startswith("_light_"):
            return Dimension.LIGHT
        if self.suffix.startswith(("_table_", "_tb_")):
            return Dimension.BACKGROUND
        return Dimension.LAYOUT

    @property
    def needs_new_assets(self) -> bool:
        """Whether the task uses objects, textures or lights that LIBERO does not have."""
        return self.dimension in (Dimension.LIGHT, Dimension.BACKGROUND) or "_add_" in self.suffix

    @property
    def has_own_files(self) -> bool:
        """Whether the task has a BDDL file of its own that differs in more than the instruction."""
        return self._parameters is None

    @property
    def has_own_init_state(self) -> bool:
        """Whether the task has one init state of its own, instead of the LIBERO task's 50."""
        return self.dimension is Dimension.LAYOUT

    @property
    def view(self) -> View:
        """Change of the main camera; the default view for all but camera tasks."""
        if self._parameters is None:
            return View()
        horizontal, vertical, scale, turn, tilt = self._parameters[:5]
        return View(horizontal, vertical, scale / 100, turn, tilt)

    @property
    def init_pose(self) -> int:
        """Number of the robot's initial pose, 1 to 500; 0: LIBERO's."""
        return 0 if self._parameters is None else self._parameters[5]

    @property
    def noise(self) -> int:
        """Number of the image corruption, 1 to 50; 0: none."""
        return 0 if self._parameters is None else self._parameters[6]

    @cached_property
    def _parameters(self) -> tuple[int, ...] | None:
        found = _VIEW.search(self.suffix)
        return None if found is None else tuple(int(number or 0) for number in found.groups())

    def instruction(self, prompt: Prompt) -> str:
        """Return the instruction that policies get."""
        if prompt is Prompt.UPSTREAM:
            return self.paraphrase or instruction_of(self.name)
        if self.paraphrase is None or _BROKEN.match(self.paraphrase):
            return instruction_of(self.base_name)
        return self.paraphrase


@cache
def plus_tasks() -> dict[str, tuple[PlusTask, ...]]:
    """Return suite -> its tasks, in LIBERO-plus's order."""
    packed = resources.files("proctor.benchmarks.libero_plus").joinpath(_TABLE).read_bytes()
    suites: dict[str, list[PlusTask]] = {}
    for line in lzma.decompress(packed).decode().splitlines():
        if line in STANDARD_SUITES:
            suite = line
            suites[suite] = []
            continue
        base, suffix, level, *text = line.split("\t")
        number = len(suites[suite])
        task = PlusTask(suite, number, int(base), suffix, int(level) if level else None, *text[:1])
        suites[suite].append(task)
    return {suite: tuple(rows) for suite, rows in suites.items()}
