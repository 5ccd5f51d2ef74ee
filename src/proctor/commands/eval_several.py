"""``proctor eval`` of several checkpoints, seeds or latencies: one run each, one comparison."""

from __future__ import annotations

import glob
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.config.flags import path_of
from proctor.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    ProctorError,
    UsageError,
    strip_control_codes,
)
from proctor.fingerprint import without_secrets

if TYPE_CHECKING:
    from proctor.report.run import Run

_EXIT_REFUSED = 2
_MOST_RUNS = 1000
_PATTERN = ("*", "?", "[")
_WEIGHTS = "pretrained_model"
"""The folder of the policy in a training's checkpoint."""


@dataclass(frozen=True)
class Variant:
    """One of several runs: the name of its folder, and its settings."""

    name: str
    seed: str
    settings: dict[str, Any]


def variants_of(settings: dict[str, Any]) -> list[Variant]:
    """Return the requested runs; one if no flag is a list.

    Raises:
        UsageError: a pattern matches nothing, or there are too many runs.
    """
    given = _given(settings, "policy", "path")
    paths = checkpoints_of(given)
    seeds = _numbers(settings.get("seed"))
    latencies = _numbers(_given(settings, "eval", "latency_steps"))
    asked = len(paths) * len(seeds) * len(latencies)
    if asked > _MOST_RUNS:
        raise UsageError(
            f"{asked} runs are asked for, at most {_MOST_RUNS} go", code="flag.out-of-range"
        )
    names = _names([Path(path) for path in paths])
    several = []
    for (path, name), seed, steps in product(zip(paths, names, strict=True), seeds, latencies):
        parts = [name] * (len(paths) > 1) + [f"seed{seed}"] * (len(seeds) > 1)
        parts += [f"latency{steps}"] * (len(latencies) > 1)
        chosen = {"policy.path": path} if path and path != given else {}
        chosen |= {"seed": seed} if len(seeds) > 1 else {}
        chosen |= {"eval.latency_steps": steps} if steps else {}
        several.append(Variant("_".join(parts), seed, settings | chosen))
    return several


def checkpoints_of(given: Any) -> list[str]:
    """Return the checkpoints of ``--policy.path``: one, a list, or those that match a pattern.

    A folder that is also named by a link (a training's ``last``) is returned once.

    Raises:
        UsageError: a pattern matches nothing.
    """
    if isinstance(given, str) and _here(given) is not None:
        return [given]
    found: list[str] = []
    for item in _listed(given):
        is_pattern = any(char in item for char in _PATTERN) and _here(item) is None
        found += _matches(item) if is_pattern else [item]
    once: dict[Path | str, str] = {}
    for path in sorted(found, key=_is_linked):
        here = _here(path)
        once.setdefault(path if here is None else here.resolve(), path)
    return [path for path in found if path in once.values()]


def _here(text: str) -> Path | None:
    """Return ``text`` as the path of an existing file or folder, else None."""
    try:
        path = Path(text).expanduser().absolute()
        return path if text and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _is_linked(path: str) -> bool:
    here = _here(path)
    return here is not None and here.resolve() != here


def _matches(pattern: str) -> list[str]:
    """Return the checkpoints that match a pattern, sorted by name."""
    place = str(path_of(pattern))
    matches = [Path(name) for name in sorted(glob.glob(place))]  # noqa: PTH207  absolute ones too
    within = [path / _WEIGHTS if (path / _WEIGHTS).is_dir() else path for path in matches]
    found = [str(path) for path in within if (path / "config.json").is_file()]
    if not found:
        raise UsageError(
            f"--policy.path={pattern}: no checkpoint matches", code="checkpoint.not-found"
        )
    return found


def _given(settings: Mapping[str, Any], section: str, name: str) -> Any:
    """Return a setting from flat or nested settings."""
    nested = settings.get(section)
    inside = nested.get(name) if isinstance(nested, Mapping) else None
    return settings.get(f"{section}.{name}", inside)


def _listed(value: Any) -> list[str]:
    """Return the items of a flag's list: ``a,b``, ``[a, b]``, or one value."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    words = str("" if value is None else value).strip().removeprefix("[").removesuffix("]")
    return [word.strip() for word in words.split(",") if word.strip()] or [""]


def _numbers(value: Any) -> list[str]:
    """Return the distinct numbers of a flag's list: a repeated seed would count episodes twice."""
    words = _listed(value)
    return list(dict.fromkeys(str(int(w)) if w.isdecimal() else w for w in words))


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short names for checkpoints: the parts of their paths that differ."""
    parts = [[part for part in path.parts if part not in ("/", _WEIGHTS)] for path in paths]
    least = min(len(own) for own in parts)
    before = next((i for i in range(least) if len({own[i] for own in parts}) > 1), least)
    after = next((i for i in range(least - before) if len({p[-1 - i] for p in parts}) > 1), 0)
    names = ["-".join(own[before : len(own) - after]) or (own or ["."])[-1] for own in parts]
    taken: dict[str, int] = {}
    for place, name in enumerate(names):
        taken[name] = taken.get(name, 0) + 1
        names[place] = name if taken[name] == 1 else f"{name}-{taken[name]}"
    return [name.replace(":", "-") for name in names]


Evaluate = Callable[[dict[str, Any], str], tuple[Path, int]]
"""Evaluates a named run by its settings; returns its folder and the exit code."""


def evaluate_several(variants: Sequence[Variant], given: dict[str, str], evaluate: Evaluate) -> int:
    """Evaluate runs one after the other, show all in one table, and return the exit code.

    A checkpoint that cannot be evaluated is named and skipped. Invalid settings of any run are
    refused before the first run starts.

    Raises:
        UsageError: all runs have the same policy, and it cannot be evaluated.
    """
    root, asked, public = _checked(variants, given)
    of_one_policy = len({str(_given(v.settings, "policy", "path")) for v in variants}) == 1
    done: dict[str, Path] = {}
    worst = 0
    for variant, settings in zip(variants, asked, strict=True):
        try:
            folder, code = evaluate(settings, variant.name)
        except ProctorError as error:
            if variant is variants[0] and of_one_policy and isinstance(error, UsageError):
                raise
            print(strip_control_codes(f"proctor: error: {variant.name}: {error}"), file=sys.stderr)
            worst = _EXIT_REFUSED
            continue
        if code in (EXIT_INTERRUPTED, EXIT_HUNG_UP):
            _say_how_to_resume(root, public)
            return code
        done[variant.name] = folder
        worst = max(worst, code)
    _show_all(done, {variant.name: variant.seed for variant in variants}, root)
    return worst


def _checked(
    variants: Sequence[Variant], given: dict[str, str]
) -> tuple[Path, list[dict[str, Any]], dict[str, Any]]:
    """Return the folder of all runs, the settings of each, and the flags without secrets.

    Raises:
        UsageError: the settings of a run are invalid.
    """
    from proctor.commands.eval_settings import reference_run, resumed_run
    from proctor.config.builder import build
    from proctor.config.evaluation import EvalConfig
    from proctor.config.merging import is_resumed, merge_settings
    from proctor.evaluation.preparing import check_ahead_of_time
    from proctor.evaluation.run import default_folder
    from proctor.runs.folder import RunFolder, make_new_folder

    first = variants[0].settings
    if is_resumed(first) and "output_dir" not in first:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, which holds the runs to complete",
            code="flag.missing",
        )
    root = path_of(str(first["output_dir"])) if "output_dir" in first else None
    asked = []
    for variant in variants:
        settings = dict(variant.settings)
        begun = root is not None and RunFolder(root / variant.name).read() is not None
        if begun and not is_resumed(settings):
            raise UsageError(
                f"{root}/{variant.name} already holds a run; add --resume to complete it, or "
                "choose another --output_dir",
                code="run.exists",
            )
        if not begun:
            settings.pop("resume", None)
        settings["output_dir"] = str((root or Path()) / variant.name)
        if settings.get("record") is not None:
            settings["record"] = str(path_of(str(settings["record"])) / variant.name)
        settings = merge_settings(
            given, resumed=resumed_run, reference=reference_run, with_file=settings
        )
        config = build(EvalConfig, settings)
        check_ahead_of_time(config)
        asked.append(settings)
    if root is None:
        root = make_new_folder(default_folder(config))
        asked = [{**s, "output_dir": str(root / s["output_dir"])} for s in asked]
    return root, asked, without_secrets(config, given)


def _say_how_to_resume(root: Path, given: Mapping[str, Any]) -> None:
    kept = {name: value for name, value in given.items() if name not in ("resume", "output_dir")}
    words = [f"--{name}={value}" for name, value in kept.items()]
    command = shlex.join([*words, "--resume", f"--output_dir={root}"])
    print(f"and this one with all the others:\n  proctor eval {command}", file=sys.stderr)


def _show_all(done: Mapping[str, Path], seeds: Mapping[str, str], root: Path) -> None:
    """Print all runs in one table, and compare those with the same episodes."""
    from proctor.report.multi_run import NamedRun, runs_table
    from proctor.report.run import load_run
    from proctor.report.tables import table_console

    console = table_console()
    loaded = {}
    for name, path in done.items():
        try:
            loaded[name] = load_run(path).require_rate()
        except UsageError as error:  # it has no episodes to compare; the others do
            print(strip_control_codes(f"note: {error}"))
    runs = [NamedRun(name, run.rows, run.monitored) for name, run in loaded.items()]
    pooled = len({seeds[name] for name in loaded}) == len(loaded) > 1
    if runs:
        console.print()
        console.print(runs_table(runs, console.width, pooled=pooled))
    episodes = [row.world_key for run in runs for row in run.rows]
    if pooled and len(set(episodes)) < len(episodes):
        print("note: these seeds share worlds; those --eval.n_episodes apart share none")
    for seed in dict.fromkeys(seeds[name] for name in loaded):
        alike = [run for name, run in loaded.items() if seeds[name] == seed]
        if len(alike) > 1:
            _compare(alike, root, seed if len(set(seeds.values())) > 1 else "")
    console.print(f"results: {root}", highlight=False, soft_wrap=True, markup=False)


def _compare(runs: Sequence[Run], root: Path, seed: str) -> None:
    """Compare the runs with the first one, in one line each and on a page.

    P-values are corrected for the number of runs: the best of many looks better than it is.
    """
    from proctor.report.compare_page import write_compare_page
    from proctor.report.comparison import Criteria, compare_all
    from proctor.report.comparison_table import difference_text, p_equals

    comparisons = compare_all(runs, Criteria())
    of_seed = f" (seed {seed})" if seed else ""
    many = f"; p corrected for {len(comparisons)} comparisons" if len(comparisons) > 1 else ""
    print(strip_control_codes(f"compared with {runs[0].path.name}{of_seed}, in points{many}:"))
    for comparison in comparisons:
        overall = comparison.overall
        line = f"{difference_text(overall)}, {p_equals(overall.p_holm)}"
        print(strip_control_codes(f"  {comparison.b.name}  {line}"))
        for warning in comparison.warnings:
            print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
    page = root / (f"compare_seed{seed}.html" if seed else "compare.html")
    print(f"page: {write_compare_page(runs, comparisons, page)}")
