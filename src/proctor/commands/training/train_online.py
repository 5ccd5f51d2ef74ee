"""``proctor train-online``: reinforcement learning in an environment, with demonstrations."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.shared.arguments import parse_flags
from proctor.errors import RunFolderError, UsageError, exit_code_of
from proctor.permissions import CODE_NAMES, KEYS, PROGRAM_NAMES
from proctor.system.files import display_path

if TYPE_CHECKING:
    from proctor.config.flags.merging import EarlierRun
    from proctor.rl.learner.learner import Learner
    from proctor.rl.learner.session import OnlineObserver
    from proctor.training.checkpoints.folder import TrainingFolder

_USAGE = """\
proctor train-online --env.type=NAME --policy.type=gaussian_actor [--FLAG=VALUE ...]

Learn from trial and error, with demonstrations and interventions if there are any (HIL-SERL). One
command starts the learner and its actors. Ctrl-C saves everything, buffers included; continue with
proctor train-online --resume --output_dir=FOLDER
"""
_CHANGEABLE = (
    *("policy.online_steps", "policy.device", "log_freq", "save_checkpoint", "save_freq"),
    *("save_minutes", "keep_last", "env_eval_freq", "rl.actors", "learner", "role", "output_dir"),
    *("resume", "config_path", "trust_remote_code", "env.trust_remote_code"),
    *(*KEYS, *CODE_NAMES, *PROGRAM_NAMES),
)
"""Flags that a resumed training takes: also those of ``eval``, ``video`` and ``wandb``. Flags that
name code or a program repeat it."""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.lerobot.online import build_online
    from proctor.config.online_training import OnlineTrainConfig
    from proctor.config.sections.online import Role

    given = parse_flags(OnlineTrainConfig, words, _USAGE)
    if given is None:
        return 0
    settings, resumed = settings_from(given)
    config = build_online(settings)
    for note in config.notes:
        print(f"note: {note}", file=sys.stderr)
    if config.role is Role.ACTOR:
        from rich.console import Console

        from proctor.rl.actor.run import run_remote_actor  # imports torch

        return run_remote_actor(config, Console(stderr=True))
    from proctor.rl.learner.session import run_online_session  # imports torch

    interrupt = run_online_session(config, settings, resumed, _printed_session()).interrupt
    return 0 if interrupt is None else exit_code_of(interrupt)


def settings_from(given: dict[str, str]) -> tuple[dict[str, Any], Path | None]:
    """Merge the settings of a training, and find the checkpoint that it continues from."""
    from proctor.config.flags.merging import is_resumed, merge_settings
    from proctor.config.lerobot.online import translate_online_settings

    flags: dict[str, Any] = dict(given)
    if not is_resumed(flags):
        settings = merge_settings(flags, translate=_settings_of_file)
        _refuse_existing(settings.get("output_dir"))
        return settings, None
    flags, _ = translate_online_settings(flags)
    _refuse_changes(flags)
    earlier, checkpoint = _training_to_resume(flags)
    return merge_settings(flags, resumed=lambda _: earlier), checkpoint


def _settings_of_file(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a config file's settings by our names, for a new training."""
    from proctor.config.flags.merging import is_resumed
    from proctor.config.lerobot.online import translate_online_settings

    if is_resumed(settings):
        raise UsageError(
            "the config file sets resume, which has to be a flag: proctor train-online --resume "
            "--output_dir=FOLDER",
            code="flag.conflict",
        )
    ours, notes = translate_online_settings(settings)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return ours


def _refuse_existing(output_dir: Any) -> None:
    """Refuse a folder with transitions before torch is imported, which takes seconds."""
    from proctor.config.flags.parsing import path_of
    from proctor.runs.training import REPLAY

    if output_dir and (path_of(str(output_dir), "--output_dir") / REPLAY).exists():
        raise RunFolderError(
            f"{output_dir} holds an online training already; add --resume to continue it, or "
            "choose another --output_dir",
            code="run.exists",
        )


def _refuse_changes(flags: dict[str, Any]) -> None:
    for name in flags:
        if name not in _CHANGEABLE and name.partition(".")[0] not in ("eval", "video", "wandb"):
            raise UsageError(
                f"--{name}: a resumed training keeps its settings; leave the flag out",
                code="flag.conflict",
            )


def _training_to_resume(flags: dict[str, Any]) -> tuple[EarlierRun, Path | None]:
    """Return the training to continue, and its checkpoint; None: it has none yet."""
    from proctor.config.flags.merging import EarlierRun
    from proctor.config.flags.parsing import path_of
    from proctor.training.checkpoints.folder import TrainingFolder

    if "output_dir" not in flags:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, the training to continue", code="flag.missing"
        )
    folder = TrainingFolder(path_of(str(flags["output_dir"]), "--output_dir"))
    earlier = folder.given(flags, from_checkpoint=False)
    if earlier is None:
        raise UsageError(
            f"--resume: {folder.path} holds no training to resume", code="run.not-found"
        )
    found, origin = {"output_dir": str(folder.path)}, str(folder.path)
    return EarlierRun(earlier, origin, _by_our_names, found), folder.checkpoints().newest()


def _by_our_names(settings: dict[str, Any]) -> dict[str, Any]:
    from proctor.config.lerobot.online import translate_online_settings

    return translate_online_settings(settings)[0]


def _printed_session() -> OnlineObserver:
    """Return the observer that prints to the terminal."""
    from rich.console import Console

    from proctor.rl.learner.session import OnlineObserver

    class PrintedSession(OnlineObserver):
        """Prints what a session tells its user."""

        def on_note(self, text: str) -> None:
            print(f"note: {text}", file=sys.stderr)

        def on_interrupted_setup(self, folder: Path) -> None:
            print("interrupted before the first step: nothing to save", file=sys.stderr)

        def on_stopped(self, folder: Path, learner: Learner) -> None:
            from proctor.runs.training import resume_flags

            step = learner.counters.environment_steps
            print(f"interrupted after environment step {step:,}", file=sys.stderr)
            command = ["proctor", "train-online", "--resume", f"--output_dir={folder}"]
            print(f"continue with\n  {shlex.join(command)}{resume_flags(folder)}", file=sys.stderr)

        def on_end(self, folder: TrainingFolder, page: Path) -> None:
            from proctor.training.checkpoints.saving import PRETRAINED

            newest = folder.checkpoints().newest()
            print(f"results: {folder.path}")
            if newest is not None:
                print(f"policy: {display_path(newest / PRETRAINED)}")
            print(f"report: {page}")

    return PrintedSession(Console(stderr=True))
