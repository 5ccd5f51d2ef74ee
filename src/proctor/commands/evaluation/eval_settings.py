"""Settings of ``proctor eval``: flags, a config file, and the runs to resume or compare with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.config.builder import get_setting
from proctor.config.flags.merging import EarlierRun, Settings, is_resumed, merge_settings
from proctor.config.flags.parsing import path_of
from proctor.errors import UsageError, strip_control_codes
from proctor.runs.discovery import find_runs
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.journal import read_journal
from proctor.runs.paths import changed_links, get_dotted, settings_with_paths, typed_again

_MOST_NAMED = 3


def settings_from(given: dict[str, str]) -> Settings:
    """Merge the flags of ``proctor eval`` with the config file and the runs that they name."""
    return merge_settings(given, resumed=resumed_run, reference=reference_run)


def resumed_run(settings: Settings) -> EarlierRun | None:
    """Return the evaluation that ``--resume`` completes."""
    if not is_resumed(settings):
        return None
    if "output_dir" not in settings:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, the run to complete", code="flag.missing"
        )
    folder = run_to_resume(path_of(str(settings["output_dir"]), "--output_dir"))
    earlier = RunFolder(folder).read()
    if earlier is None:
        raise UsageError(f"--resume: {folder} holds no run to resume", code="run.not-found")
    _refuse_another_type(folder, earlier, settings)
    again = typed_again(earlier.paths, settings)
    new = {name: value for name, value in settings.items() if name not in again}
    given = settings_with_paths(earlier.given, earlier.paths, folder, new)
    for note in changed_links(earlier.paths, new):
        print(strip_control_codes(f"note: {note}"), file=sys.stderr)
    found = {name: get_dotted(given, name) for name in again}
    return EarlierRun(given, str(folder), found={**found, "output_dir": str(folder)})


def run_to_resume(folder: Path) -> Path:
    """Return the run in ``folder``, or the only unfinished one below it."""
    runs = find_runs(folder)
    if folder in runs or not runs:
        return folder
    begun = [run for run in runs if not _is_complete(run)] if len(runs) > 1 else runs
    if len(begun) != 1:
        named = ", ".join(str(run) for run in (begun or runs)[:_MOST_NAMED])
        more = " ..." if len(begun or runs) > _MOST_NAMED else ""
        what = f"{len(begun)} unfinished runs" if begun else f"{len(runs)} runs, all complete,"
        raise UsageError(
            f"--resume: {what} lie below {folder}; name one: {named}{more}", code="run.ambiguous"
        )
    print(strip_control_codes(f"resuming {begun[0]}"), file=sys.stderr)
    return begun[0]


def _is_complete(run: Path) -> bool:
    record = RunFolder(run).read()
    ended = sum(row.outcome.counts for row in read_journal(run).rows)
    return record is not None and ended == record.planned_episodes


def _refuse_another_type(folder: Path, earlier: RunRecord, settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run with another benchmark or kind of policy."""
    for section, what in (("env", "on"), ("policy", "of")):
        was = get_setting(section, "type", earlier.resolved)
        now, flag = get_setting(section, "type", settings), f"--{section}.type"
        if section == "policy" and get_setting(section, "path", settings):
            now, flag = "pretrained", "--policy.path"
        if now not in ("", was):
            raise UsageError(
                f"--resume: {folder} is a run {what} {was}, not {what} {now}; leave out {flag}, or "
                "choose another --output_dir for a new run",
                code="run.other-settings",
            )


def reference_run(settings: Settings) -> EarlierRun | None:
    """Return the run that ``--against`` compares with: its benchmark, seed and episodes."""
    if str(settings.get("against", "none")).lower() in ("none", "null"):
        return None
    path = path_of(str(settings["against"]), "--against")
    reference = RunFolder(path).read()
    if reference is None:
        raise UsageError(
            f"--against: {path} is not a run folder (it has no run.json)", code="run.not-found"
        )
    try:
        env, seed = dict(reference.resolved["env"]), reference.resolved["seed"]
        kind, n_episodes = env["type"], reference.resolved["eval"]["n_episodes"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--against: {path}/run.json lacks the settings of the run: {error!r}",
            code="run.damaged",
        ) from None
    given_type = get_setting("env", "type", settings) or kind
    if given_type != kind:
        raise UsageError(
            f"--against: {path} is on {kind}, not on {given_type}", code="run.other-benchmark"
        )
    not_defining = ("max_parallel_tasks", "trust_remote_code")
    taken = {
        f"env.{name}": value
        for name, value in env.items()
        if value is not None and name not in not_defining
    }
    of_env = {name: found for name, found in reference.paths.items() if name in taken}
    taken = settings_with_paths(taken, of_env, path, settings)
    taken |= {"seed": seed, "eval.n_episodes": n_episodes}
    perturbed = ("perturb", "perturb_levels")
    taken |= {name: reference.resolved[name] for name in perturbed if reference.resolved.get(name)}
    return EarlierRun(taken, str(path), found={"against": str(path.absolute())})
