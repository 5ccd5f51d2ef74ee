"""LIBERO-plus: 10,030 perturbed tasks of LIBERO's four standard suites, one episode each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.benchmarks.base import BenchmarkPlugin, Sim
from proctor.benchmarks.libero.assets import VARIABLE
from proctor.benchmarks.libero.benchmark import (
    FPS,
    HORIZONS,
    LEROBOT,
    N_INIT_STATES,
    Libero,
    LiberoConfig,
    select_tasks,
)
from proctor.benchmarks.libero.prompt import Prompt
from proctor.benchmarks.libero.tasks import (
    ALL,
    STANDARD_SUITES,
    bddl_file,
    read_init_states,
    read_state_file,
)
from proctor.benchmarks.libero_plus.package import (
    ASSETS_SOURCE,
    INSTALL,
    package_folder,
    package_version,
    plus_assets,
)
from proctor.benchmarks.libero_plus.selection import (
    BASE_ASSETS,
    chosen_kinds,
    chosen_levels,
    chosen_tasks,
)
from proctor.benchmarks.libero_plus.tasks import PlusTask, plus_tasks
from proctor.benchmarks.selection import ids_in_group, split_names
from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import NAME_LIST, PRESENTATION
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.types import EpisodeSpec, Perturbation, Task

if TYPE_CHECKING:
    from proctor.features import Array


@dataclass
class LiberoPlusConfig(LiberoConfig):
    """Flags of LIBERO-plus."""

    n_episodes: ClassVar[int] = 1
    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "perturbation difficulty prompt paired",
    }

    type: str = setting("libero_plus", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(ALL, f"suites, comma-separated: {', '.join(STANDARD_SUITES)}; {ALL}: all 4")
    perturbation: str = setting(
        "all",
        "kinds of tasks: camera, robot, language, light, background, noise, layout (or its "
        "halves moved and added); base_assets: all that need no new asset",
        PRESENTATION,
        NAME_LIST,
    )
    difficulty: str | None = setting(
        None,
        "levels of difficulty, as 3 or 1-5 or 1,4 (default: all tasks, with the 121 that "
        "have no level)",
        PRESENTATION,
    )
    prompt: Prompt = setting(
        Prompt.CLEAN,
        "instruction: the LIBERO task's and the paraphrases (clean), or LIBERO-plus's own, "
        "which has the perturbation's parameters in it (upstream)",
    )
    paired: bool = setting(
        False,
        "also run the LIBERO task of every perturbed one, for paired statistics",
        PRESENTATION,
    )
    observation_height: int = setting(256, "height of camera images in pixels")
    observation_width: int = setting(256, "width of camera images in pixels")
    assets: str | None = setting(
        None,
        "folder of LIBERO's assets, or of LIBERO-plus's unpacked assets.zip (default: "
        f"${VARIABLE}, else the cache)",
        PRESENTATION,
    )


class LiberoPlus(Libero):
    """The LIBERO-plus benchmark."""

    name = "libero_plus"
    _config: LiberoPlusConfig

    def __init__(self, config: LiberoPlusConfig) -> None:
        super().__init__(config)

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``; layout tasks have one init state, the others LIBERO's 50."""
        plus = _plus_of(task)
        n_states = 1 if plus is not None and plus.has_own_init_state else N_INIT_STATES
        return EpisodeSpec(task, index, seed + index, index % n_states)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        rules = super().protocol()
        init = f"episode index modulo {N_INIT_STATES}; layout tasks: the task's only one"
        return rules | {
            "init_state_rule": init,
            "prompt": self._config.prompt.value,
            "files": package_version() if any(t.has_own_files for t in self._perturbed) else None,
            "camera": "agentview's pose rounded to 4 digits after each rotation, in all tasks",
            "noise": "agentview only; random numbers by run seed, suite, task and step",
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check LIBERO's packages and assets, and those of LIBERO-plus that the tasks need."""
        self._check_files()
        return super().preflight(keys)

    def lacking(self) -> str | None:
        """Return what an evaluation would download, and the command for it; None: nothing."""
        try:
            self._check_files()
        except UsageError as error:
            return str(error)
        return super().lacking()

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``; the first image opens its GL context."""
        plus = _plus_of(task)
        if plus is None:
            return super().make_sim(task)
        from proctor.benchmarks.libero.settling_check import check_settling
        from proctor.benchmarks.libero_plus.sim import LiberoPlusSim

        sim = LiberoPlusSim(self._sim_settings(task), plus)
        if not plus.has_own_files:
            check_settling(sim, replace(task, suite=plus.suite, name=plus.base_name))
        return sim

    def _select_tasks(self) -> list[Task]:
        clean = {task.key: task for task in select_tasks(self._clean_config())}
        tasks = [self._task(plus) for plus in self._perturbed]
        if not self._config.paired:
            return tasks
        used = {task.perturbation.clean_key for task in tasks if task.perturbation is not None}
        return [task for key, task in clean.items() if key in used] + tasks

    def _clean_config(self) -> LiberoConfig:
        return replace(self._config, task=",".join(self._base_suites), task_ids=None)

    def _task(self, plus: PlusTask) -> Task:
        config = self._config
        return Task(
            suite=f"{plus.suite}@{plus.dimension.value}",
            task_id=plus.task_id,
            name=plus.name,
            instruction=plus.instruction(config.prompt),
            max_steps=config.episode_length or HORIZONS[config.protocol][plus.suite],
            fps=FPS,
            perturbation=Perturbation(plus.dimension.value, plus.level, plus.suite, plus.base_id),
        )

    @cached_property
    def _base_suites(self) -> list[str]:
        """The chosen LIBERO suites, each once."""
        named = split_names(self._config.task, flag="task")
        suites = dict.fromkeys(
            suite for name in named for suite in (STANDARD_SUITES if name == ALL else (name,))
        )
        for suite in suites:
            if suite not in STANDARD_SUITES:
                choice = f" (choose {', '.join(STANDARD_SUITES)} or {ALL})"
                raise UsageError(
                    f"libero_plus has no suite {suite!r}"
                    f"{did_you_mean(suite, STANDARD_SUITES) or choice}",
                    code="env.unknown-task",
                )
        return list(suites)

    @cached_property
    def _perturbed(self) -> list[PlusTask]:
        """The tasks that the flags select."""
        config = self._config
        kinds, levels = chosen_kinds(config.perturbation), chosen_levels(config.difficulty)
        chosen = []
        for suite in self._base_suites:
            rows = plus_tasks()[suite]
            ids = set(ids_in_group(suite, len(rows), config.task_ids))
            chosen += [t for t in chosen_tasks(rows, kinds, levels) if t.task_id in ids]
        if not chosen:
            raise UsageError(
                "libero_plus has no task with this --env.task, --env.task_ids, "
                "--env.perturbation and --env.difficulty; widen one of them",
                code="env.unknown-task",
            )
        return chosen

    def _problem_file(self, task: Task) -> Path:
        plus = _plus_of(task)
        if plus is None or not plus.has_own_files:
            return bddl_file(*_base_of(task))
        return _own_folder() / "bddl_files" / plus.suite / f"{plus.name}.bddl"

    def _init_states(self, task: Task) -> Array:
        plus = _plus_of(task)
        if plus is None or not plus.has_own_init_state:
            return read_init_states(*_base_of(task))
        folder = _own_folder() / "init_files" / "libero_newobj" / plus.suite
        return read_state_file(folder / f"{plus.name}.pruned_init").reshape(1, -1)

    def _expert_hint(self, task: Task) -> str:
        """Return the LIBERO task that the expert cannot do: hundreds of tasks perturb it."""
        suite, name = _base_of(task)
        return f"leave out the tasks that perturb {name} of {suite}: --env.task_ids"

    def _find_assets(self, suites: Sequence[str]) -> Path:
        published = self._published_assets
        return super()._find_assets(suites) if published is None else published

    @cached_property
    def _published_assets(self) -> Path | None:
        """The assets of LIBERO-plus, which include LIBERO's; None: not here."""
        named = self._config.assets or os.environ.get(VARIABLE)
        return None if not named else plus_assets(Path(named).expanduser().absolute())

    def _check_files(self) -> None:
        tasks = self._perturbed
        filed = [task for task in tasks if task.has_own_files]
        if filed and package_folder() is None:
            raise UsageError(
                f"{len(filed):,} of {len(tasks):,} tasks (layout, light, background) need "
                f"LIBERO-plus's files; run: {INSTALL}, or leave them out: "
                "--env.perturbation=camera,robot,language,noise",
                code="extra.missing",
            )
        new = [task for task in tasks if task.needs_new_assets]
        if new and self._published_assets is None:
            raise UsageError(
                f"{len(new):,} of {len(tasks):,} tasks (light, background, added objects) need "
                f"LIBERO-plus's assets: unpack {ASSETS_SOURCE} and give --env.assets=DIR/assets, "
                f"or leave them out: --env.perturbation={BASE_ASSETS}",
                code="env.missing-assets",
            )


def _plus_of(task: Task) -> PlusTask | None:
    """Return the LIBERO-plus task; None for a clean one."""
    suite, _, dimension = task.suite.partition("@")
    return plus_tasks()[suite][task.task_id] if dimension else None


def _base_of(task: Task) -> tuple[str, str]:
    """Return suite and name of the LIBERO task that ``task`` perturbs, or is."""
    plus = _plus_of(task)
    return (task.suite, task.name) if plus is None else (plus.suite, plus.base_name)


def _own_folder() -> Path:
    folder = package_folder()
    assert folder is not None, "preflight has checked it"
    return folder


PLUGIN = BenchmarkPlugin(
    config=LiberoPlusConfig,
    make=LiberoPlus,
    lerobot_flags={
        **LEROBOT,
        "is_libero_plus": LerobotFlag((True,), "use --env.type=libero for LIBERO's own tasks"),
    },
    groups=(*STANDARD_SUITES, ALL),
    summary="LIBERO-plus: 10,030 perturbed LIBERO tasks (camera, robot, language, noise, ...)",
)
