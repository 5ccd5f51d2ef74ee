"""Checks of a plug-in benchmark's methods and their return types, before a run starts.

``proctor.testing`` checks that a benchmark behaves as its contract says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from numbers import Integral
from typing import Any

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.features import ActionSpec, Feature, FeatureKind
from proctor.system.user_code import check_contract, check_protocol_is_json, plugin_error
from proctor.types import Score, Task
from proctor_worker.boundary import WrongValue, as_numbers


def check_benchmark(benchmark: Benchmark) -> None:
    """Refuse a benchmark without a required method, or with wrong return types."""
    check_contract(benchmark, Benchmark)
    own = type(benchmark).__name__
    if not isinstance(benchmark.action, ActionSpec):
        made = type(benchmark.action).__name__
        raise plugin_error(benchmark, f"{own}.action is a {made}, not an ActionSpec")
    _check_fields(benchmark, f"{own}.action", _wrong_action(benchmark.action))
    tasks: Any = benchmark.tasks()
    _check_each(benchmark.tasks, tasks, list, Task)
    if not tasks:
        raise plugin_error(benchmark.tasks, f"{own}.tasks() lists no task")
    features: Any = benchmark.features()
    _check_each(benchmark.features, features, dict, Feature)
    for task in tasks:
        _check_fields(benchmark.tasks, f"{own}.tasks(): {task.name!r:.60}", _wrong_task(task))
    for key, feature in features.items():
        _check_fields(benchmark.features, f"{own}.features(): {key}", _wrong_feature(feature))
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


def _check_fields(method: Any, what: str, wrong: list[str]) -> None:
    if wrong:
        raise plugin_error(method, f"{what} has a wrong {wrong[0]}")


def _wrong_task(task: Task) -> list[str]:
    texts = {"suite": task.suite, "name": task.name, "instruction": task.instruction}
    counts = {"max_steps": task.max_steps, "fps": task.fps, "task_id": task.task_id}
    wrong = [f"{name}: {value!r:.60}" for name, value in texts.items() if type(value) is not str]
    return wrong + [
        f"{name}: {value!r:.60}"
        for name, value in counts.items()
        if not _is_count(value, least=0 if name == "task_id" else 1)
    ]


def _wrong_feature(feature: Feature) -> list[str]:
    wrong = [] if isinstance(feature.kind, FeatureKind) else [f"kind: {feature.kind!r:.60}"]
    shape: Any = feature.shape
    if not isinstance(shape, tuple) or not all(_is_count(n, least=0) for n in shape):
        wrong.append(f"shape: {shape!r:.60}")
    try:
        is_number = isinstance(feature.dtype, str) and np.dtype(feature.dtype).kind in "biuf"
    except TypeError:
        is_number = False
    return wrong if is_number else [*wrong, f"dtype: {feature.dtype!r:.60}"]


def _wrong_action(action: ActionSpec) -> list[str]:
    if not _is_count(action.size, least=1):
        return [f"size: {action.size!r:.60}"]
    wrong = [] if isinstance(action.clipped, bool) else [f"clipped: {action.clipped!r:.60}"]
    for name, bound in (("low", action.low), ("high", action.high)):
        if bound is None:
            continue
        try:
            numbers = as_numbers(bound, name)
        except WrongValue:
            numbers = np.array([np.nan])
        if numbers.shape not in ((), (action.size,)) or np.isnan(numbers).any():
            wrong.append(f"{name}: {bound!r:.60}")
    return wrong


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


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
