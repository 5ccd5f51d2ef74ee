"""``proctor train``: train a policy on a dataset."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.shared.arguments import parse_flags
from proctor.errors import UsageError, exit_code_of
from proctor.system.collection import collection_paused
from proctor.system.files import display_path

if TYPE_CHECKING:
    from proctor.config.flags.merging import EarlierRun
    from proctor.config.training import TrainConfig
    from proctor.training.checkpoints.folder import TrainingFolder
    from proctor.training.loop import Trainer
    from proctor.training.session import SessionObserver

_USAGE = """\
proctor train --dataset.repo_id=USER/NAME [--dataset.root=DIR] --policy.type=NAME [--FLAG=VALUE ...]

Train a policy on demonstrations. Ctrl-C writes a checkpoint, and a resumed training ends with the
same bits as an uninterrupted one: proctor train --resume --output_dir=FOLDER

A reward classifier is trained with --reward_model.type=reward_classifier instead of a policy; all
--reward_model.* flags: proctor train --help reward_model
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.builder import build
    from proctor.config.lerobot.training import drop_lerobot_settings
    from proctor.config.training import TrainConfig

    given = parse_flags(TrainConfig, words, _USAGE)
    if given is None:
        return 0
    settings, resumed = settings_from(given)
    config = build(TrainConfig, drop_lerobot_settings(settings))
    with collection_paused():
        from proctor.training.session import run_session  # imports torch

    interrupt = run_session(config, settings, resumed, _printed_session()).interrupt
    return 0 if interrupt is None else exit_code_of(interrupt)


def settings_from(given: dict[str, str]) -> tuple[dict[str, Any], Path | None]:
    """Merge the settings of a training, and find the checkpoint that it continues from.

    With ``--resume``, ``--config_path`` names a checkpoint's train_config.json, as in LeRobot.
    """
    from proctor.config.flags.merging import is_resumed, merge_settings
    from proctor.config.flags.parsing import path_of

    flags: dict[str, Any] = dict(given)
    if not is_resumed(flags):
        return merge_settings(flags, translate=_settings_of_file(flags)), None
    file = path_of(flags.pop("config_path"), "--config_path") if "config_path" in flags else None
    earlier, checkpoint = _training_to_resume(flags, file)
    return merge_settings(flags, resumed=lambda _: earlier), checkpoint


def _settings_of_file(flags: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what is done to the settings of ``--config_path`` for a new training.

    A checkpoint's train_config.json names the folder of its training. A new training with these
    settings gets a folder of its own.
    """
    from proctor.config.flags.merging import is_resumed
    from proctor.config.flags.parsing import path_of
    from proctor.config.lerobot.training import drop_lerobot_settings, upload_settings

    def translate(settings: dict[str, Any]) -> dict[str, Any]:
        file = path_of(str(flags["config_path"]), "--config_path")
        kept = dict(settings)
        if (file.parent.name, file.name) == ("pretrained_model", "train_config.json"):
            kept.pop("resume", None)
            kept.pop("output_dir", None)
            print(
                "note: a new training with these settings; to continue that training: proctor "
                f"train --resume --config_path={shlex.quote(str(flags['config_path']))}",
                file=sys.stderr,
            )
        elif is_resumed(kept):
            raise UsageError(
                f"{file} sets resume, which has to be a flag: proctor train --resume "
                "--output_dir=FOLDER",
                code="flag.conflict",
            )
        return {**drop_lerobot_settings(kept), **upload_settings(kept)}

    return translate


def _training_to_resume(flags: dict[str, Any], file: Path | None) -> tuple[EarlierRun, Path | None]:
    """Return the training to continue, and its checkpoint; None: it has none yet."""
    from proctor.config.flags.parsing import path_of, read_config_file

    if (
        file is None
        and "output_dir" in flags
        and not path_of(str(flags["output_dir"]), "--output_dir").is_dir()
    ):
        # The imports below load torch, which takes seconds.
        raise UsageError(
            f"--resume: {flags['output_dir']} holds no training to resume", code="run.not-found"
        )
    from proctor.config.flags.merging import EarlierRun
    from proctor.config.lerobot.training import UPLOAD_SETTINGS, drop_lerobot_settings
    from proctor.runs.training import RECORD_FILE
    from proctor.training.checkpoints.folder import TrainingFolder
    from proctor.training.checkpoints.saving import PRETRAINED, STATE, checkpoint_of

    if file is not None:
        checkpoint: Path | None = checkpoint_of(file)
        folder = TrainingFolder(checkpoint.parent.parent)  # type: ignore[union-attr]
    elif "output_dir" in flags:
        folder = TrainingFolder(path_of(str(flags["output_dir"]), "--output_dir"))
        checkpoint = folder.checkpoints().newest()
    else:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, the training to continue", code="flag.missing"
        )
    of = None if file is None else checkpoint  # a named one is continued with its own settings
    earlier = folder.given(flags, from_checkpoint=checkpoint is not None, of=of)
    if earlier is None:
        if checkpoint is None:
            raise UsageError(
                f"--resume: {folder.path} holds no training to resume", code="run.not-found"
            )
        earlier = read_config_file(checkpoint / PRETRAINED / "train_config.json")
    elif of is not None and not (of / STATE / RECORD_FILE).exists():
        print(
            f"note: {of} has no record of its settings, since an older Proctor wrote it; it "
            "continues with those of the training's last session",
            file=sys.stderr,
        )
    if checkpoint is not None:
        _refuse_policy_flags(flags)
        _refuse_changes(flags, earlier, checkpoint)
    uploads = {name: value for name, value in earlier.items() if name in UPLOAD_SETTINGS}

    def adapt(settings: dict[str, Any]) -> dict[str, Any]:
        kept = _without_replaced(_without_policy(settings, checkpoint), flags)
        return {**drop_lerobot_settings(kept), **uploads}

    origin = str(folder.path)
    return EarlierRun(earlier, origin, adapt, found={"output_dir": origin}), checkpoint


def _refuse_policy_flags(flags: dict[str, Any]) -> None:
    from proctor.config.lerobot.training import UPLOAD_SETTINGS

    for name in flags:
        section, _, field = name.partition(".")
        own = section in NETWORKS and f"policy.{field}" not in ("policy.device", *UPLOAD_SETTINGS)
        if own:
            raise UsageError(
                f"--{name}: a resumed policy keeps its settings; leave the flag out",
                code="flag.conflict",
            )


NETWORKS = ("policy", "reward_model")
"""Sections of the network to train."""
_FROM_CHECKPOINTS = {
    "optimizer.": "training keeps its optimiser",
    "peft.": "policy keeps its adapter, or has none",
    "dataset.inputs": "policy keeps its input features",
    "rename_map": "policy keeps its feature names",
    "ema.enable": "training averages weights from its start, or not at all",
}
"""Flags, by prefix, whose values the checkpoint defines, and the reason."""


def _refuse_changes(flags: dict[str, Any], earlier: dict[str, Any], checkpoint: Path) -> None:
    """Refuse flags that contradict the checkpoint, which would silently win."""
    from proctor.fingerprint import flatten
    from proctor.policies.lerobot.config.presets import HYPERPARAMETERS
    from proctor.training.checkpoints.saving import PRETRAINED

    said = flatten(earlier)
    free = {f"optimizer.{name}": None for name in HYPERPARAMETERS} | {"ema.enable": "false"}
    for name, value in flags.items():
        why = next(
            (why for start, why in _FROM_CHECKPOINTS.items() if name.startswith(start)), None
        )
        is_free = name in free and free[name] in (None, str(value).lower())
        if why is not None and not is_free and str(value).lower() != str(said.get(name)).lower():
            raise UsageError(
                f"--{name}: a resumed {why}; leave it out, or begin another training with "
                f"--policy.path={display_path(checkpoint / PRETRAINED)}",
                code="flag.conflict",
            )


def _without_policy(settings: dict[str, Any], checkpoint: Path | None) -> dict[str, Any]:
    """Return settings with the checkpoint's policy, if there is a checkpoint."""
    from proctor.fingerprint import flatten
    from proctor.training.checkpoints.saving import PRETRAINED

    if checkpoint is None:
        return settings
    folder = checkpoint / PRETRAINED
    flat = flatten(settings, lambda name, _: name in NETWORKS)
    kept = {k: v for k, v in flat.items() if k.partition(".")[0] not in NETWORKS}
    for name in ("device", *_flags_kept_by_resume(folder)):
        given = [flat[f"{section}.{name}"] for section in NETWORKS if f"{section}.{name}" in flat]
        if given and given[0] is not None:
            kept[f"policy.{name}"] = given[0]
    return {**kept, "policy.path": str(folder)}


def _without_replaced(settings: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Return settings without those that belong to a dataset or schedule which a flag replaces.

    The folder of one dataset is not that of another, and a schedule has fields of its own.
    """
    from proctor.fingerprint import flatten
    from proctor.policies.lerobot.config.presets import shared_schedule

    said = flatten(settings, lambda name, _: name in ("dataset", "scheduler"))
    name, kind = (flags.get(flag) for flag in ("dataset.repo_id", "scheduler.type"))
    if name is not None and str(name) != str(said.get("dataset.repo_id")):
        said = {k: v for k, v in said.items() if k not in ("dataset.root", "dataset.revision")}
    start = "scheduler."
    schedule = {k.removeprefix(start): v for k, v in said.items() if k.startswith(start)}
    kept = shared_schedule(schedule, None if kind is None else str(kind))
    others = {k: v for k, v in said.items() if not k.startswith(start)}
    return others | {f"{start}{field}": value for field, value in kept.items()}


def _flags_kept_by_resume(folder: Path) -> tuple[str, ...]:
    """Return the flags of a network's training that its checkpoint does not hold."""
    from proctor.policies.lerobot.checkpoint.checkpoint import read_config

    return type(read_config(folder)[1]).kept_by_resume


def _printed_session() -> SessionObserver:
    """Return the observer that prints to the terminal."""
    from rich.console import Console

    from proctor.training.session import SessionObserver

    class PrintedSession(SessionObserver):
        """Prints what a session tells its user."""

        def on_note(self, text: str) -> None:
            print(f"note: {text}", file=sys.stderr)

        def on_interrupted_setup(self, folder: TrainingFolder, resumed: Path | None) -> None:
            _say_nothing_was_trained(folder, resumed)

        def on_stopped(self, folder: TrainingFolder, trainer: Trainer) -> None:
            _say_where_it_stopped(folder, trainer)

        def on_end(self, folder: TrainingFolder, config: TrainConfig, page: Path) -> None:
            _say_results(folder, config, page)

        def on_upload(self, text: str) -> None:
            print(text, file=sys.stderr if text.startswith("warning") else sys.stdout)

    return PrintedSession(Console(stderr=True))


def _say_results(folder: TrainingFolder, config: TrainConfig, page: Path) -> None:
    from proctor.training.checkpoints.saving import AVERAGED, PRETRAINED

    newest = folder.checkpoints().newest()
    print(f"results: {folder.path}")
    if newest is not None:
        print(f"policy: {display_path(newest / PRETRAINED)}")
        if (newest / AVERAGED).is_dir():
            used = (
                ", which evaluations use"
                if config.evaluates_in_env and config.ema.is_evaluated
                else ""
            )
            print(f"averaged: {display_path(newest / AVERAGED)}{used}")
    print(f"report: {page}")


def _say_nothing_was_trained(folder: TrainingFolder, resumed: Path | None) -> None:
    kept = "" if resumed is None else f"; {display_path(resumed)} is unchanged"
    print(f"interrupted before the first step: nothing to save{kept}", file=sys.stderr)
    if resumed is not None:
        _say_how_to_resume(folder)


def _say_where_it_stopped(folder: TrainingFolder, trainer: Trainer) -> None:
    """Print the step, what is saved and lost, and the command that continues."""
    step, newest = trainer.trainer_state.step, folder.checkpoints().newest()
    saved = 0 if newest is None else int(newest.name)
    lost = f"step {step:,} is" if step == saved + 1 else f"steps {saved + 1:,} to {step:,} are"
    if step == 0:
        text = "before the first step: nothing to save"
    elif newest is None:
        off = "" if trainer.setup.config.save_checkpoint else " (--save_checkpoint=false)"
        text = f"after step {step:,}: {lost} lost, there is no checkpoint{off}"
    elif step > saved:
        text = (
            f"after step {step:,}: {lost} lost, the newest checkpoint is that of step {saved:,} "
            f"({display_path(newest)})"
        )
    else:
        text = f"after step {step:,}: its checkpoint is complete ({display_path(newest)})"
    print(f"interrupted {text}", file=sys.stderr)
    _say_how_to_resume(folder)


def _say_how_to_resume(folder: TrainingFolder) -> None:
    from proctor.runs.training import resume_flags

    words = ["proctor", "train", "--resume", f"--output_dir={folder.path}"]
    if "LOCAL_WORLD_SIZE" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        local = os.environ["LOCAL_WORLD_SIZE"]
        words[:1] = ["torchrun", f"--nproc_per_node={local}", "-m", "proctor.cli"]
    print(f"continue with\n  {shlex.join(words)}{resume_flags(folder.path)}", file=sys.stderr)
