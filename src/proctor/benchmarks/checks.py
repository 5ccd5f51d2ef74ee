"""Checks of a plug-in benchmark's methods and their return types, before a run starts.

``proctor.testing`` checks that a benchmark behaves as its contract says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from proctor.benchmarks.base import Benchmark
from proctor.features import ActionSpec, Feature
from proctor.system.user_code import check_contract, check_protocol_is_json, plugin_error
from proctor.types import Score, Task


def check_benchmark(benchmark: Benchmark) -> None:
    """Refuse a benchmark without a required method, or with wrong return types.

    Raises:
        PluginError: a method is missing or wrong; the text names its file and line.
    """
    check_contract(benchmark, Benchmark)
    own = type(benchmark).__name__
    if not isinstance(benchmark.action, ActionSpec):
        made = type(benchmark.action).__name__
        raise plugin_error(benchmark, f"{own}.action is a {made}, not an ActionSpec")
    tasks: Any = benchmark.tasks()
    _check_each(benchmark.tasks, tasks, list, Task)
    if not tasks:
        raise plugin_error(benchmark.tasks, f"{own}.tasks() lists no task")
    features: Any = benchmark.features()
    _check_each(benchmark.features, features, dict, Feature)
    check_protocol_is_json(benchmark.protocol)
    for name in ("warnings", "notes"):
        if not is_text_tuple(getattr(benchmark, name)):
            raise plugin_error(benchmark, f"{own}.{name} must be a tuple of texts")
    if not is_score_tuple(benchmark.scores):
        raise plugin_error(benchmark, f"{own}.scores must be a tuple of Score")
    if not isinstance(benchmark.judged, bool):
        raise plugin_error(
            benchmark, f"{own}.judged is a {type(benchmark.judged).__name__}, not a bool"
        )


def check_task_ids(benchmark: Benchmark, wanted: Collection[int] | None) -> None:
    """Refuse a benchmark that lists tasks which ``--env.task_ids`` does not select.

    Clean counterparts of selected perturbed tasks are allowed: they have ids of another suite.

    Raises:
        PluginError: naming such a task and the function that selects tasks.
    """
    if wanted is None:
        return
    rest = [task for task in benchmark.tasks() if task.task_id not in wanted]
    clean = {
        task.perturbation.clean_key
        for task in benchmark.tasks()
        if task.task_id in wanted and task.perturbation is not None
    }
    ignored = [task for task in rest if task.key not in clean]
    if ignored:
        given = ",".join(map(str, wanted))
        raise plugin_error(
            benchmark.tasks,
            f"--env.task_ids=[{given}] is ignored by {type(benchmark).__name__}: its tasks have "
            f"{ignored[0].suite} {ignored[0].task_id}; make them with tasks_of_suite or "
            "ids_in_group of proctor.benchmarks.selection",
        )


def is_text_tuple(value: Any) -> bool:
    """Whether a value is a tuple of texts, and not one text."""
    return isinstance(value, tuple) and all(isinstance(line, str) for line in value)


def is_score_tuple(value: Any) -> bool:
    """Whether a value is a tuple of scores."""
    return isinstance(value, tuple) and all(isinstance(score, Score) for score in value)


def _check_each(method: Callable[[], Any], found: Any, kind: type[Any], of: type[Any]) -> None:
    """Refuse a return value of ``method`` that is not a list or dict of ``of``."""
    name = method.__qualname__
    if not isinstance(found, kind):
        said = f"returned a {type(found).__name__}, not a {kind.__name__}"
        raise plugin_error(method, f"{name}() {said} of {of.__name__}")
    for item in found.values() if isinstance(found, dict) else found:
        if not isinstance(item, of):
            raise plugin_error(
                method, f"{name}() returned a {type(item).__name__} among its {of.__name__}s"
            )
