"""Tasks and specs as the JSON records that worlds receive."""

from __future__ import annotations

from typing import Any

from proctor.types import EpisodeSpec, Task


def task_fields(task: Task) -> dict[str, Any]:
    """Return a task as the JSON record that worlds receive."""
    return {
        "suite": task.suite,
        "task_id": task.task_id,
        "name": task.name,
        "instruction": task.instruction,
        "max_steps": task.max_steps,
        "fps": task.fps,
    }


def spec_fields(spec: EpisodeSpec) -> dict[str, Any]:
    """Return an episode's spec as the JSON record that simulators receive."""
    return {
        "seed": spec.seed,
        "index": spec.index,
        "init_state": spec.init_state,
        "max_steps": spec.task.max_steps,
    }
