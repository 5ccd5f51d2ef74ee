"""LIBERO-Pro: 16 suites with other places, objects, instructions or goals of LIBERO's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.libero.benchmark import (
    FPS,
    HORIZONS,
    LEROBOT,
    Libero,
    LiberoConfig,
    select_tasks,
)
from proctor.benchmarks.libero.prompt import Prompt
from proctor.benchmarks.libero.tasks import task_names
from proctor.benchmarks.libero.versions import check_versions
from proctor.benchmarks.libero_pro.task_files import (
    PACKAGE,
    changed_task_files,
    download_task_files,
    find_task_files,
)
from proctor.benchmarks.libero_pro.tasks import (
    GROUPS,
    SUITES,
    base_suite,
    dimension_of,
    pro_instruction,
    read_pro_init_states,
)
from proctor.benchmarks.selection import split_names, tasks_of_suite
from proctor.errors import UsageError, did_you_mean
from proctor.features import Array
from proctor.fingerprint import PRESENTATION
from proctor.settings import setting
from proctor.types import Perturbation, Task

PLACED_LIKE = {
    "bigger_akita_black_bowl": "akita_black_bowl",
    "bigger_alphabet_soup": "alphabet_soup",
    "black_bowl": "akita_black_bowl",
    "blue_ketchup": "alphabet_soup",
    "brown_rack": "wine_rack",
    "green_bbq_sauce": "bbq_sauce",
    "green_butter": "butter",
    "green_chocolate_pudding": "chocolate_pudding",
    "red_basket": "basket",
    "red_cream_cheese": "cream_cheese",
    "red_salad_dressing": "salad_dressing",
    "white_bottle": "wine_bottle",
    "yellow_cabinet": "white_cabinet",
    "yellow_milk": "alphabet_soup",
    "yellow_moka_pot": "moka_pot",
    "yellow_plate": "plate",
    "yellow_stove": "flat_stove",
    "yellow_tomato_sauce": "tomato_sauce",
}


if TYPE_CHECKING:
    from proctor.benchmarks.libero.sim import LiberoSimSettings


@dataclass
class LiberoProConfig(LiberoConfig):
    """Flags of LIBERO-Pro."""

    type: str = setting("libero_pro", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "libero_10_swap",
        "suites, comma-separated: libero_{spatial,object,goal,10}_{swap,object,lan,task}; "
        "libero_all_swap: four of them; libero_all: all 16",
    )
    prompt: Prompt = setting(
        Prompt.CLEAN,
        "instructions: those of the changed tasks (clean), or the package's, which are the "
        "base tasks' in every suite (upstream)",
    )
    paired: bool = setting(
        False, "also run the clean tasks that the perturbed ones change", PRESENTATION
    )
    task_files: str | None = setting(
        None,
        "folder of LIBERO-Pro's bddl_files and init_files (default: $PROCTOR_LIBERO_PRO, "
        "else the cache)",
        PRESENTATION,
    )


class LiberoPro(Libero):
    """The LIBERO-Pro benchmark: LIBERO's simulator with other task files and objects."""

    name = "libero_pro"
    _config: LiberoProConfig

    def __init__(self, config: LiberoProConfig) -> None:
        super().__init__(config)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return super().protocol() | {
            "task_files": PACKAGE,
            "changed_task_files": self._changed_task_files,
            "instruction": "of the BDDL file in suites *_lan and *_task, else the file's name"
            if self._config.prompt is Prompt.CLEAN
            else "the file's name, which is the base task's",
        }

    @cached_property
    def _changed_task_files(self) -> dict[str, str]:
        return changed_task_files(self._config.task_files)

    def lacking(self) -> str | None:
        """Return what an evaluation would download, and the command for it; None: nothing."""
        check_versions()
        try:
            find_task_files(self._config.task_files)
            self._find_assets(self._suites)
        except FileNotFoundError as error:
            return (
                f"installed, but its files are not in {error.args[0]}; "
                "run: python -m proctor.benchmarks.libero_pro.download"
            )
        return None

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check LIBERO's packages, download files and assets, and check GL for images."""
        variables = super().preflight(keys)
        try:
            find_task_files(self._config.task_files)
        except FileNotFoundError:
            download_task_files()
        return variables

    def _select_tasks(self) -> list[Task]:
        perturbed = _perturbed_tasks(self._config)
        if not self._config.paired:
            return perturbed
        bases = dict.fromkeys(base_suite(task.suite) for task in perturbed)
        clean = replace(self._config, task=",".join(bases))
        return select_tasks(clean) + perturbed

    def _task_names(self, suite: str) -> Sequence[str]:
        return task_names()[base_suite(suite)]

    def _problem_file(self, task: Task) -> Path:
        if task.suite not in SUITES:
            return super()._problem_file(task)
        folder = find_task_files(self._config.task_files)
        return folder / "bddl_files" / task.suite / f"{task.name}.bddl"

    def _init_states(self, task: Task) -> Array:
        if task.suite not in SUITES:
            return super()._init_states(task)
        folder = find_task_files(self._config.task_files)
        return read_pro_init_states(folder, task.suite, task.name)

    def _sim_settings(self, task: Task) -> LiberoSimSettings:
        return replace(super()._sim_settings(task), objects=PLACED_LIKE)


def _perturbed_tasks(config: LiberoProConfig) -> list[Task]:
    """Return the tasks of all named suites, each suite once."""
    suites = dict.fromkeys(
        suite
        for name in split_names(config.task, flag="task")
        for suite in GROUPS.get(name, (name,))
    )
    tasks: list[Task] = []
    for suite in suites:
        if suite not in SUITES:
            raise _unknown_suite(suite)
        base = base_suite(suite)
        rows = [
            (name, pro_instruction(suite, task_id, name, config.prompt))
            for task_id, name in enumerate(task_names()[base])
        ]
        horizon = config.episode_length or HORIZONS[config.protocol][base]
        tasks += [
            replace(task, perturbation=Perturbation(dimension_of(suite), None, base, task.task_id))
            for task in tasks_of_suite(suite, rows, config.task_ids, horizon, FPS)
        ]
    return tasks


def _unknown_suite(suite: str) -> UsageError:
    hint = did_you_mean(suite, SUITES) or f" (choose {', '.join((*SUITES, *GROUPS))})"
    if suite in task_names():
        hint = "; it is a suite of --env.type=libero, and --env.paired=true adds clean tasks"
    return UsageError(f"libero_pro has no suite {suite!r}{hint}", code="env.unknown-task")


PLUGIN = BenchmarkPlugin(
    config=LiberoProConfig,
    make=LiberoPro,
    lerobot_flags=LEROBOT,
    groups=(*SUITES, *GROUPS),
    summary="LIBERO-Pro: LIBERO's tasks with other places, objects, instructions or goals",
)
