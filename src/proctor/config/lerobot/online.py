"""LeRobot's TrainRLServerPipelineConfig, read as settings of ``proctor train-online``.

LeRobot describes the environment as ``env.type=gym_manipulator`` with the robot, the teleoperator
and all processors inside. Here these are the sections ``env``, ``robot``, ``teleop`` and
``processor``. Flags that only LeRobot has are accepted where their value asks for what Proctor does
anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.config.builder import build
from proctor.config.flags.unused_flags import unused_in_online_training
from proctor.config.lerobot.training import NEWEST_LEROBOT
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.sections.online import OWN_SAC_SETTINGS
from proctor.errors import UsageError
from proctor.fingerprint import flatten
from proctor.lerobot_flags import LerobotFlag, lerobot_flags, refuse_unsupported, unused_note
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.lerobot.config.config import encode_config

_NOTED = (
    "steps",
    "num_workers",
    "optimizer",
    "scheduler",
    "ema",
    "processor.control_mode",
    "processor.observation.add_ee_pose_to_observation",
)
"""Flags that users expect to have an effect. The others change nothing in LeRobot either."""
_MAPS = (
    "rename_map",
    "env.features",
    "env.features_map",
    "processor.image_preprocessing.crop_params_dict",
    "processor.inverse_kinematics.end_effector_bounds",
    "processor.inverse_kinematics.end_effector_step_sizes",
)
_IDLE = (
    "job.",
    "policy.pretrained_path",
    "policy.pretrained_revision",
    "policy.output_features",
    "policy.push_to_hub",
    "env.features",
)
"""Names, or prefixes of names, without effect: the environment defines the features."""
_SECTIONS = (
    *("job", "env", "robot", "teleop", "dataset", "algorithm", "wandb", "eval", "processor"),
    *(
        f"processor.{name}"
        for name in (
            "observation",
            "image_preprocessing",
            "gripper",
            "reset",
            "inverse_kinematics",
            "reward_classifier",
        )
    ),
)
"""Sections that may be null in a file."""
_RENAMED = {"env.fps": "fps", "eval_freq": "env_eval_freq"}
_MANIPULATOR = "gym_manipulator"


def build_online(settings: Mapping[str, Any]) -> OnlineTrainConfig:
    """Build the config of an online training from settings by our names or LeRobot's."""
    ours, notes = translate_online_settings(settings)
    config = build(OnlineTrainConfig, ours)
    config.notes = [*notes, *config.notes, *unused_in_online_training(config)]
    return config


def translate_online_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings, nested or flat, by our names, and notes on those without effect."""
    flat = flatten(settings, _is_section)
    flat = _translated_env({_renamed(name): value for name, value in flat.items()})
    foreign = lerobot_flags("training", "online_training")
    kept: dict[str, Any] = {}
    idle: dict[str, list[str]] = {}
    for name, value in flat.items():
        if isinstance(value, str) and value.lower() in ("null", "none"):  # as LeRobot reads flags
            value = None
        known = _isolated_name(name, foreign)
        if known is not None:
            if value is not None and value != {}:
                refuse_unsupported(known, value, foreign)
                if known in _NOTED:
                    idle.setdefault(foreign[known].reason, []).append(f"--{known}")
        elif name == "policy.input_features":
            kept.setdefault("rl.inputs", list(value or {}) or None)
        elif not name.startswith(_IDLE) and not (value is None and name in _SECTIONS):
            kept[name] = value
    return kept, [unused_note(list(dict.fromkeys(names)), why) for why, names in idle.items()]


def _isolated_name(name: str, foreign: Mapping[str, LerobotFlag]) -> str | None:
    """Return the entry of ``foreign`` for a flag: its own, or that of its section."""
    parts = name.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((known for known in names if known in foreign), None)


def _is_section(name: str, value: Mapping[str, Any]) -> bool:
    return _renamed(name) not in _MAPS and not name.startswith("policy.")


def _renamed(name: str) -> str:
    """Return our name of a flag: what LeRobot has inside ``env`` is a section here."""
    for section in ("processor", "robot", "teleop"):
        inside = f"env.{section}"
        if name == inside or name.startswith(f"{inside}."):
            return name.removeprefix("env.")
    return _RENAMED.get(name, name)


def _translated_env(flat: dict[str, Any]) -> dict[str, Any]:
    """Return settings with LeRobot's ``gym_manipulator`` replaced by a benchmark or a robot."""
    if flat.get("env.type") != _MANIPULATOR:
        return flat
    kept = {name: value for name, value in flat.items() if name not in ("env.type", "env.name")}
    name = flat.get("env.name") or "real_robot"
    if name == "gym_hil":
        kept["env.type"] = "gym_hil"
        if "processor.gripper.gripper_penalty" in kept:  # the simulator computes it
            kept["env.gripper_penalty"] = kept.pop("processor.gripper.gripper_penalty")
        for device in ("robot", "teleop"):  # LeRobot's gym_hil uses neither
            kept = {k: v for k, v in kept.items() if k.partition(".")[0] != device}
        return kept
    if name != "real_robot":
        raise UsageError(
            f"--env.name={name} is not known (choose gym_hil, real_robot)",
            code="flag.invalid-value",
        )
    if kept.get("env.task") is not None:
        kept["rl.task"] = kept["env.task"]
    return {k: v for k, v in kept.items() if k.partition(".")[0] != "env"}


def lerobot_online_config(config: OnlineTrainConfig, policy: GaussianActorConfig) -> dict[str, Any]:
    """Return LeRobot's train_config.json of an online training.

    ``env`` is omitted: LeRobot's environments have other fields under the same names.
    """
    settings = config.as_dict()
    dataset = settings["dataset"]
    dataset["repo_id"] = dataset["repo_id"] or Path(dataset["root"] or "").name
    algorithm = {k: v for k, v in settings["algorithm"].items() if k not in OWN_SAC_SETTINGS}
    kept = ("output_dir", "job_name", "seed", "batch_size", "online_ratio", "log_freq")
    return {
        **{name: settings[name] for name in (*kept, "save_checkpoint", "save_freq")},
        "resume": False,
        "dataset": dataset if config.dataset.is_given else None,
        "env": None,
        "policy": json.loads(encode_config(policy, NEWEST_LEROBOT)),
        "algorithm": algorithm,
        "mixer": "online_offline",
    }
