"""``proctor train``: train a policy on a dataset."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.arguments import parse_flags
from proctor.errors import UsageError, exit_code_of
from proctor.system.files import display_path

if TYPE_CHECKING:
    from proctor.config.merging import EarlierRun
    from proctor.config.training import TrainConfig
    from proctor.training.folder import TrainingFolder
    from proctor.training.publishing import Publication
    from proctor.training.setup import TrainingSetup

_USAGE = """\
proctor train --dataset.repo_id=USER/NAME [--dataset.root=DIR] --policy.type=NAME [--FLAG=VALUE ...]

Train a policy on demonstrations. An interrupted training continues exactly from its newest
checkpoint: proctor train --resume --output_dir=FOLDER
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.callbacks.interrupts import Interrupts
    from proctor.config.builder import build
    from proctor.config.lerobot_training import drop_lerobot_settings
    from proctor.config.training import TrainConfig

    given = parse_flags(TrainConfig, words, _USAGE)
    if given is None:
        return 0
    settings, resumed = settings_from(given)
    config = build(TrainConfig, drop_lerobot_settings(settings))
    with Interrupts():
        return train_and_show(config, settings, resumed)


def settings_from(given: dict[str, str]) -> tuple[dict[str, Any], Path | None]:
    """Merge the settings of a training, and find the checkpoint that it continues from.

    With ``--resume``, ``--config_path`` names a checkpoint's train_config.json, as in LeRobot.

    Raises:
        UsageError: there is nothing to resume, or a flag would change what is resumed.
    """
    from proctor.config.flags import path_of
    from proctor.config.lerobot_training import drop_lerobot_settings
    from proctor.config.merging import is_resumed, merge_settings

    flags: dict[str, Any] = dict(given)
    if not is_resumed(flags):
        return merge_settings(flags, translate=drop_lerobot_settings), None
    file = path_of(flags.pop("config_path")) if "config_path" in flags else None
    earlier, checkpoint = _training_to_resume(flags, file)
    return merge_settings(flags, resumed=lambda _: earlier), checkpoint


def _training_to_resume(flags: dict[str, Any], file: Path | None) -> tuple[EarlierRun, Path | None]:
    """Return the training to continue, and its checkpoint; None: it has none yet."""
    from proctor.config.flags import path_of, read_config_file

    if file is None and "output_dir" in flags and not path_of(str(flags["output_dir"])).is_dir():
        # The imports below load torch, which takes seconds.
        raise UsageError(
            f"--resume: {flags['output_dir']} holds no training to resume", code="run.not-found"
        )
    from proctor.config.lerobot_training import drop_lerobot_settings
    from proctor.config.merging import EarlierRun
    from proctor.training.checkpoints import PRETRAINED, checkpoint_of
    from proctor.training.folder import TrainingFolder
    from proctor.training.publishing import SETTINGS

    for name in flags:
        if name.startswith("policy.") and name not in ("policy.device", *SETTINGS):
            raise UsageError(
                f"--{name}: a resumed policy keeps its settings; leave the flag out",
                code="flag.conflict",
            )
    if file is not None:
        checkpoint: Path | None = checkpoint_of(file)
        folder = TrainingFolder(checkpoint.parent.parent)  # type: ignore[union-attr]
    elif "output_dir" in flags:
        folder = TrainingFolder(path_of(str(flags["output_dir"])))
        checkpoint = folder.checkpoints().newest()
    else:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, the training to continue", code="flag.missing"
        )
    earlier = folder.given()
    if earlier is None:
        if checkpoint is None:
            raise UsageError(
                f"--resume: {folder.path} holds no training to resume", code="run.not-found"
            )
        earlier = read_config_file(checkpoint / PRETRAINED / "train_config.json")
    if checkpoint is not None:
        _refuse_changes(flags, earlier, checkpoint)
    uploads = {name: value for name, value in earlier.items() if name in SETTINGS}

    def adapt(settings: dict[str, Any]) -> dict[str, Any]:
        return {**drop_lerobot_settings(_without_policy(settings, checkpoint)), **uploads}

    origin = str(folder.path)
    return EarlierRun(earlier, origin, adapt, found={"output_dir": origin}), checkpoint


_FROM_CHECKPOINTS = {
    "optimizer.": "training keeps its optimiser",
    "scheduler.type": "training keeps its learning rate schedule",
    "peft.": "policy keeps its adapter, or has none",
    "dataset.inputs": "policy keeps its input features",
    "rename_map": "policy keeps its feature names",
    "ema.enable": "training averages weights from its start, or not at all",
}
"""Flags, by prefix, whose values the checkpoint defines, and the reason."""


def _refuse_changes(flags: dict[str, Any], earlier: dict[str, Any], checkpoint: Path) -> None:
    """Refuse flags that contradict the checkpoint, which would silently win."""
    from proctor.fingerprint import flatten
    from proctor.training.checkpoints import PRETRAINED

    said = flatten(earlier)
    free = {"optimizer.grad_clip_norm": None, "ema.enable": "false"}
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
    from proctor.training.checkpoints import PRETRAINED

    if checkpoint is None:
        return settings
    device = settings.get("policy.device")
    kept = {k: v for k, v in settings.items() if k.partition(".")[0] != "policy"}
    if device is not None:
        kept["policy.device"] = device
    return {**kept, "policy.path": str(checkpoint / PRETRAINED)}


def train_and_show(config: TrainConfig, given: dict[str, Any], resumed: Path | None) -> int:
    """Train, show the progress, and return the exit code."""
    from proctor.callbacks.wandb import require_wandb
    from proctor.training.distributed import process_group
    from proctor.training.folder import TrainingFolder
    from proctor.training.publishing import check_publication, parse_publication
    from proctor.training.setup import prepare

    folder = TrainingFolder(config.output_dir or _default_folder(config))
    publication = parse_publication(given)
    if config.wandb.active:
        require_wandb(config.wandb)
    with process_group() as distributed:
        with distributed.local_main_first():
            setup = prepare(config, resumed, distributed)
            if publication is not None and distributed.is_main_process:
                check_publication(publication, setup.parts.base)
        try:
            if distributed.is_main_process:
                code = _train_and_write(folder, setup, given, resumed)
                return code or _upload(folder, publication)
            return _train_along(folder, setup, resumed)
        finally:
            setup.close()


def _train_along(folder: TrainingFolder, setup: TrainingSetup, resumed: Path | None) -> int:
    """Train in a process other than the main one, which shows and writes."""
    from proctor.training.loop import Trainer

    try:
        trainer = Trainer.begin(setup, resumed)
        trainer.fill_caches(lambda *_: None)
        trainer.run(folder.checkpoints(), None)
        setup.distributed.barrier()
    except KeyboardInterrupt as stop:
        return exit_code_of(stop)
    return 0


def _train_and_write(
    folder: TrainingFolder, setup: TrainingSetup, given: dict[str, str], resumed: Path | None
) -> int:
    from proctor.training.checkpoints import AVERAGED, PRETRAINED
    from proctor.training.folder import SessionData
    from proctor.training.loop import Trainer
    from proctor.training.monitor import TrainingMonitor

    config, frames = setup.config, len(setup.order.frames)
    if config.resume:
        folder.check_scores_comparable(config)
    known = folder.recorded_frames() if config.resume else None
    with folder.in_use(config, given, SessionData(frames, setup.dataset)):
        if known not in (None, frames):
            _say_what_is_learnt_from(frames, known)
        trainer = Trainer.begin(setup, resumed)
        folder.drop_log_after(trainer.trainer_state.step)
        _say_what_is_set_aside(folder, resumed, trainer.trainer_state.step)
        monitor = TrainingMonitor(folder, trainer)
        try:
            trainer.fill_caches(monitor.on_frames_decoded)
            monitor.resume_evaluations()
            trainer.run(folder.checkpoints(config.steps), monitor)
            monitor.wait_for_evaluations()
            setup.distributed.barrier()
        except KeyboardInterrupt as stop:
            monitor.close(failed=True)
            monitor.write_report()
            _say_how_to_resume(folder)
            return exit_code_of(stop)
        except Exception:
            monitor.close(failed=True)
            raise
        monitor.close()
        page = monitor.write_report()
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
    return 0


def _say_what_is_learnt_from(frames: int, known: int | None) -> None:
    print(
        f"note: {frames:,} frames instead of {known:,}: the dataset, or what is taken of it, was "
        "changed since; they come in another order, and statistics stay the checkpoint's",
        file=sys.stderr,
    )


def _say_what_is_set_aside(folder: TrainingFolder, resumed: Path | None, step: int) -> None:
    """Rename checkpoints and evaluations of steps after the resumed checkpoint.

    Evaluations of later steps are always renamed: their weights no longer exist.
    """
    from proctor.runs.training import CHECKPOINTS, EVALUATIONS

    newest = folder.checkpoints().newest()
    is_newest = resumed is None or newest is None or resumed.resolve() == newest.resolve()
    places = [EVALUATIONS] if is_newest else [CHECKPOINTS, EVALUATIONS]
    names = folder.rename_results_after(step, places)
    if names:
        print(f"note: of steps after {step:,}, set aside: {', '.join(names)}", file=sys.stderr)


def _upload(folder: TrainingFolder, publication: Publication | None) -> int:
    """Upload the policy if requested; a failed upload does not fail the training."""
    from proctor.training.publishing import publish

    if publication is not None:
        for line in publish(folder, publication):
            print(line, file=sys.stderr if line.startswith("warning") else sys.stdout)
    return 0


def _default_folder(config: TrainConfig) -> Path:
    env = "" if config.env is None else f"{config.env.type}_"
    job = config.job_name or f"{env}{getattr(config.policy, 'type', 'policy')}"
    return Path(time.strftime(f"outputs/train/%Y-%m-%d/%H-%M-%S_{job}"))


def _say_how_to_resume(folder: TrainingFolder) -> None:
    print(
        f"interrupted: continue with\n  proctor train --resume "
        f"--output_dir={shlex.quote(str(folder.path))}",
        file=sys.stderr,
    )
