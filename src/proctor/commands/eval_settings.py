"""From the flags of ``proctor eval`` to settings: what a file or another run adds to them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.config.builder import get_setting
from proctor.config.flags import path_of, read_config_file
from proctor.config.trust import without_code_trust
from proctor.errors import UsageError, strip_control_codes
from proctor.runs.discovery import find_runs
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.journal import read_journal

_MOST_NAMED = 3


def settings_from(given: dict[str, str]) -> dict[str, Any]:
    """Join what a resumed run was given, the config file and the flags; the later ones win."""
    return with_run_settings(with_config_file(given), given)


def with_config_file(given: dict[str, str]) -> dict[str, Any]:
    """Join the config file that the flags name with the flags."""
    settings: dict[str, Any] = dict(given)
    if "config_path" in settings:
        file = path_of(settings.pop("config_path"))
        settings = {**without_code_trust(read_config_file(file), given, str(file)), **settings}
    return settings


def is_resumed(settings: Mapping[str, Any]) -> bool:
    """Whether what is missing in a folder is asked for."""
    return str(settings.get("resume", "false")).lower() == "true"


def with_run_settings(settings: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    """Add what the run that is resumed, or compared with, says; ``given`` are the flags."""
    if is_resumed(settings):
        settings = _resumed(settings, given)
    if str(settings.get("against", "none")).lower() not in ("none", "null"):
        settings = _with_episodes_of(path_of(str(settings["against"])), settings)
    return settings


def _resumed(settings: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    """Add what the run to complete was given, and the folder that it was found in."""
    if "output_dir" not in settings:
        raise UsageError("--resume needs --output_dir=FOLDER, the run to complete")
    folder = run_to_resume(path_of(str(settings["output_dir"])))
    earlier = RunFolder(folder).read()
    if earlier is None:
        raise UsageError(f"--resume: {folder} holds no run to resume")
    _refuse_another_type(folder, earlier, settings)
    joined = {**without_code_trust(earlier.given, given, str(folder)), **settings}
    return {**joined, "output_dir": str(folder)}


def run_to_resume(folder: Path) -> Path:
    """Return the run in ``folder``, or the one below it that is meant.

    Raises:
        UsageError: there is none, or which one is meant cannot be told.
    """
    runs = find_runs(folder)
    if folder in runs or not runs:
        return folder
    begun = [run for run in runs if not _is_complete(run)] if len(runs) > 1 else runs
    if len(begun) != 1:
        named = ", ".join(str(run) for run in (begun or runs)[:_MOST_NAMED])
        more = " ..." if len(begun or runs) > _MOST_NAMED else ""
        what = f"{len(begun)} unfinished runs" if begun else f"{len(runs)} runs, all complete,"
        raise UsageError(f"--resume: {what} lie below {folder}; name one: {named}{more}")
    print(strip_control_codes(f"resuming {begun[0]}"), file=sys.stderr)
    return begun[0]


def _is_complete(run: Path) -> bool:
    record = RunFolder(run).read()
    ended = sum(row.outcome.counts for row in read_journal(run).rows)
    return record is not None and ended == record.planned_episodes


def _refuse_another_type(folder: Path, earlier: RunRecord, settings: Mapping[str, Any]) -> None:
    """Refuse another benchmark or kind of policy in so many words: their flags would not fit."""
    for section, what in (("env", "on"), ("policy", "of")):
        was = get_setting(section, "type", earlier.resolved)
        now, flag = get_setting(section, "type", settings), f"--{section}.type"
        if section == "policy" and get_setting(section, "path", settings):
            now, flag = "pretrained", "--policy.path"
        if now not in ("", was):
            raise UsageError(
                f"--resume: {folder} is a run {what} {was}, not {what} {now}; leave out {flag}, or "
                "choose another --output_dir for a new run"
            )


def _with_episodes_of(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Take benchmark, seed and number of episodes from the run to compare with, unless given."""
    reference = RunFolder(path).read()
    if reference is None:
        raise UsageError(f"--against: {path} is not a run folder (it has no run.json)")
    try:
        env, seed = dict(reference.resolved["env"]), reference.resolved["seed"]
        kind, n_episodes = env["type"], reference.resolved["eval"]["n_episodes"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--against: {path}/run.json does not say what was run: {error!r}"
        ) from None
    section = settings.get("env")
    nested = section.get("type", kind) if isinstance(section, dict) else kind
    given_type = settings.get("env.type") or nested
    if given_type != kind:
        raise UsageError(f"--against: {path} is on {kind}, not on {given_type}")
    without_code_trust({"env.type": kind, "env.id": env.get("id", "")}, settings, str(path))
    how = ("max_parallel_tasks", "trust_remote_code")  # no part of what an episode is
    taken = {f"env.{k}": value for k, value in env.items() if value is not None and k not in how}
    taken |= {"seed": seed, "eval.n_episodes": n_episodes}
    return {**taken, **settings, "against": str(path.absolute())}
