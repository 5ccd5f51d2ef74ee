"""What a robot's trials write: the run's record, its fingerprint, and a row per trial."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proctor import plugins
from proctor.config.robot_evaluation import RobotEvalConfig
from proctor.control.policy.driver import RobotPolicy
from proctor.control.robot_features import camera_shapes, state_channels
from proctor.control.trials.loop import TrialRun
from proctor.control.trials.verdicts import Judge, Ruling
from proctor.fingerprint import (
    PROTOCOL_FORMAT,
    defining_fields,
    json_round_trip,
    to_json,
    without_secrets,
)
from proctor.robots.base import VELOCITIES, RealClock, Robot, Unit
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.journal import EpisodeRecord
from proctor.runs.paths import record_paths
from proctor.runs.records import PlannedTask
from proctor.starts import make_start
from proctor.system.platform.platform_info import (
    git_commit,
    installed_versions,
    torch_hardware,
    usable_cores,
)
from proctor.types import MAX_START_VALUES, EpisodeSpec, Outcome, Score, Start, Task

PARTIAL_SCORE = Score("score", "partial score")
_SIMULATED = (
    "the simulation's clock stood still while the policy computed, so a slow policy lost no time; "
    "all times are by the computer's clock"
)
_CONNECTION = ("id", "port", "calibration_dir", "cameras")
"""Fields of a robot's config that say where it is connected; cameras count by name and shape."""


def robot_protocol(
    config: RobotEvalConfig, robot: Robot, made: RobotPolicy, judge: Judge
) -> dict[str, Any]:
    """Return everything that defines a trial, as JSON values; the robot is connected.

    It covers robot type, calibration, units, limits, cameras, fps, horizon, judge and policy.
    """
    fields = defining_fields(config)
    device, policy, trials = fields.pop("robot"), fields.pop("policy"), fields.pop("eval")
    spec = made.policy.spec
    defined = {
        "format": PROTOCOL_FORMAT,
        "benchmark": {
            "type": device.pop("type"),
            "name": robot.name,
            "robot": _without_connection(device),
            "code": plugins.plugin_code_hashes("robots", config.robot.type),
            "calibration": {n: dict(v) for n, v in robot.calibration_values().items()},
            "units": {n: unit.value for n, unit in robot.action_features.items()},
            "state_units": {n: unit.value for n, unit in state_channels(robot).items()},
            "cameras": {name: list(shape) for name, shape in camera_shapes(robot).items()},
            "limits": {n: [round(end, 3) for end in pair] for n, pair in robot.limits.items()},
            "horizon": config.max_steps,
            "clock": "real" if _is_real(robot) else "simulated",
            "end_rule": "horizon / fps seconds of the clock",
            "judge": judge.by,
            "seed_rule": "run seed + block; each block has each policy once",
            "order_rule": "blocks in the order of sealed entropy",
        },
        "policy": {
            "type": policy.pop("type"),
            "config": policy,
            "code": plugins.plugin_code_hashes("policies", config.policy.type),
            "inputs": list(spec.inputs),
            "n_obs_steps": spec.n_obs_steps,
            "replan_steps": spec.n_action_steps,
            **made.policy.protocol(),
        },
        "trials": trials,
        "versions": _versions(),
        **fields,
    }
    return json_round_trip(to_json(defined))


def _is_real(robot: Robot) -> bool:
    return isinstance(robot.clock, RealClock)


def _without_connection(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_connection(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in _CONNECTION
    }


def _versions() -> dict[str, str]:
    known = installed_versions(("numpy",))
    python = ".".join(known["python"].split(".")[:2])
    return {name: known[name] for name in ("numpy", "proctor")} | {"python": python}


@dataclass(frozen=True)
class PolicyUnderTest:
    """One of the policies of a session: its settings, the loaded policy and its run folder."""

    name: str
    config: RobotEvalConfig
    given: Mapping[str, Any]
    """The settings as the user gave them."""
    made: RobotPolicy
    folder: RunFolder


def robot_run_record(
    tested: PolicyUnderTest, robot: Robot, task: Task, judge: Judge, n_policies: int
) -> RunRecord:
    """Return the ``run.json`` of one policy's trials, without a session."""
    config, given = tested.config, tested.given
    kept = {name: value for name, value in given.items() if name not in ("resume", "output_dir")}
    resolved = config.as_dict()
    resolved["eval"]["stop_when"] = config.stop_rule(n_policies)
    planned = config.eval.n_episodes
    return RunRecord(
        given=without_secrets(config, kept),
        resolved=without_secrets(config, resolved),
        protocol=robot_protocol(config, robot, tested.made, judge),
        versions=installed_versions(("numpy",)),
        machine={
            "platform": platform.platform(),
            "usable_cores": usable_cores(),
            "git_commit": git_commit(),
            **torch_hardware(),
        },
        sessions=[],
        planned_episodes=planned,
        bit_reproducible=False,
        tasks=[
            PlannedTask(
                task.suite, task.task_id, task.name, task.instruction, task.max_steps, planned
            )
        ],
        paths=record_paths(config, dict(given), tested.folder.path),
        scores=[PARTIAL_SCORE] if judge.gives_scores else [],
        warnings=[*tested.made.policy.spec.warnings, *(() if _is_real(robot) else (_SIMULATED,))],
    )


POSE_TOLERANCE = 2.0
"""Degrees, percent of a joint's range, or centimetres: how exactly a robot returns to a pose."""


def measured_pose(robot: Robot, observation: Mapping[str, Any]) -> dict[str, float]:
    """Return the observed positions in the units of ``POSE_TOLERANCE``."""
    pose: dict[str, float] = {}
    for name, unit in state_channels(robot).items():
        if unit is Unit.METRES:
            pose[f"{name} (cm)"] = 100 * float(observation[name])
        elif unit not in VELOCITIES:
            pose[name] = float(observation[name])
    return pose


def trial_start(robot: Robot, observation: Mapping[str, Any], spec: EpisodeSpec) -> Start | None:
    """Return the scene and the robot's measured pose; None: the robot observes no position.

    The objects are not measured: a person places them. So the scene's name is part of the start.
    """
    pose = {spec.world: float(spec.index)} | measured_pose(robot, observation)
    shown = dict(list(pose.items())[:MAX_START_VALUES])
    # Two poses that are each this near to the first one may be twice as far apart.
    return make_start(shown, 2 * POSE_TOLERANCE) if len(shown) > 1 else None


def judged_record(
    spec: EpisodeSpec, run: TrialRun, started_at: float, ended_at: float, prepared_s: float
) -> EpisodeRecord:
    """Return the journal's row of a judged trial; a void one is an error that is repeated."""
    verdict = run.verdict
    if verdict.ruling in (Ruling.VOID, Ruling.REDO):
        reason = f": {verdict.reason}" if verdict.reason else ""
        return errored_record(spec, f"{verdict.ruling.value}{reason}", started_at, ended_at)
    success = verdict.ruling is Ruling.SUCCESS
    infer_s = sum(run.infer_s)
    score = None if verdict.score is None else {PARTIAL_SCORE.name: verdict.score}
    return EpisodeRecord(
        **_identity(spec, started_at, ended_at),
        outcome=Outcome.SUCCESS if success else Outcome.FAILURE,
        success_once=success,
        success_at_end=success,
        steps=run.steps,
        clipped_steps=run.limited_steps,
        open_s=round(prepared_s, 6),
        sim_s=round(max(0.0, run.seconds - infer_s), 6),
        render_s=0.0,
        wait_s=round(infer_s, 6),
        error=None,
        steps_to_success=run.steps if success else None,
        scores=score,
    )


def errored_record(
    spec: EpisodeSpec, error: str, started_at: float, ended_at: float
) -> EpisodeRecord:
    """Return the row of a trial that does not count: the robot failed, or it was void."""
    return EpisodeRecord(
        **_identity(spec, started_at, ended_at),
        outcome=Outcome.ERROR,
        success_once=None,
        success_at_end=None,
        steps=None,
        clipped_steps=None,
        open_s=None,
        sim_s=None,
        render_s=None,
        wait_s=None,
        error=error,
    )


def _identity(spec: EpisodeSpec, started_at: float, ended_at: float) -> dict[str, Any]:
    return {
        "suite": spec.task.suite,
        "task": spec.task.name,
        "task_id": spec.task.task_id,
        "episode_index": spec.index,
        "seed": spec.seed,
        "init_state": spec.init_state,
        "world": spec.world,
        "start_time": round(started_at, 4),
        "end_time": round(ended_at, 4),
        "worker": 0,
        "attempts": 1,
        "sum_reward": None,
        "max_reward": None,
        "renders": None,
        "digest": None,
    }
