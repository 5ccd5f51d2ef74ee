"""LeRobot's commands: those that Proctor runs, and what it has instead of the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from proctor.errors import UsageError

RUN_AS = {
    "eval": ("eval",),
    "train": ("train",),
    "learner": ("train-online", "--role=learner"),
    "actor": ("train-online", "--role=actor"),
    "record": ("record",),
    "replay": ("replay",),
    "edit-dataset": ("data", "edit"),
    "info": ("info",),
    "teleoperate": ("teleoperate",),
    "rollout": ("rollout",),
    "calibrate": ("calibrate",),
    "setup-motors": ("setup-motors",),
    "find-port": ("find-port",),
    "find-cameras": ("find-cameras",),
}
"""LeRobot's commands without their prefix, and our command that takes their flags."""
INSTEAD = {
    "dataset-viz": "run: proctor data view {dataset}",
    "imgtransform-viz": "Proctor draws no augmented images; `proctor train "
    "--dataset.image_transforms.enable=true` trains on them, and `proctor data view {dataset}` "
    "shows the dataset",
    "train-tokenizer": "Proctor trains no action tokenizers; train it with LeRobot, and give its "
    "folder as --policy.action_tokenizer_name=DIR to `proctor train --policy.type=pi0_fast`",
    "policy-server": "run: proctor serve --protocol=lerobot --policy.path=CHECKPOINT",
    "robot-client": "run: proctor rollout --robot.type=NAME --policy.type=remote "
    "--policy.url=grpc://HOST:8080",
    "annotate": "run: proctor data set-task {dataset} --task=TEXT, which sets instructions",
    "convert-dcp": "there is nothing to convert: Proctor writes whole checkpoints as safetensors",
    "find-joint-limits": "`proctor calibrate` measures the range of every joint, and targets are "
    "kept inside it; Proctor computes no end-effector limits from a URDF file",
    "setup-can": "Proctor drives arms on serial buses and none on a CAN bus",
}
"""LeRobot's other commands, and what Proctor has for them."""
_DATASET_FLAGS = ("--repo-id", "--repo_id", "--dataset.repo_id")


def translate(words: Sequence[str]) -> list[str] | None:
    """Return the words of our command for a command line of LeRobot; None if it is none.

    The name may have LeRobot's prefix: ``lerobot-train``, ``edit-dataset``,
    ``lerobot.async_inference.policy_server``.
    """
    name = words[0].rpartition(".")[2].lower().replace("_", "-").removeprefix("lerobot-")
    if name in RUN_AS:
        return [*RUN_AS[name], *words[1:]]
    if name not in INSTEAD:
        return None
    mend = INSTEAD[name].format(dataset=_dataset_in(words[1:]))
    raise UsageError(f"{words[0]} is LeRobot's: {mend}", code="command.lerobot")


def _dataset_in(words: Sequence[str]) -> str:
    """Return the dataset that LeRobot's flags name, or a placeholder."""
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name in _DATASET_FLAGS and (value or after):
            return value if equals else after
    return "DATASET"
