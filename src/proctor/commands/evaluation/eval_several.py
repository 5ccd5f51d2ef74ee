"""``proctor eval`` of several policies, seeds or latencies: one run each, one comparison."""

from __future__ import annotations

import glob
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.config.flags.parsing import path_of
from proctor.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    ProctorError,
    UsageError,
    strip_control_codes,
)
from proctor.fingerprint import without_secrets

if TYPE_CHECKING:
    from proctor.report.run.run import Run
    from proctor.runs.journal import EpisodeRecord

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
    pool: str = ""
    """The name without the seed: runs of one pool differ only in the seed."""


def variants_of(settings: dict[str, Any]) -> list[Variant]:
    """Return the requested runs; one if no flag is a list."""
    given = _given(settings, "policy", "path")
    paths, kinds = checkpoints_of(given), _kinds(settings)
    policies = [*zip(paths, _names([Path(path) for path in paths]), [""] * len(paths), strict=True)]
    if len(kinds) > 1:
        policies = [("", kind.replace(":", "-"), kind) for kind in kinds]
    seeds = _numbers(settings.get("seed"), "seed")
    latencies = _numbers(_given(settings, "eval", "latency_steps"), "eval.latency_steps")
    asked = len(policies) * len(seeds) * len(latencies)
    if asked > _MOST_RUNS:
        raise UsageError(
            f"{asked} runs are asked for, at most {_MOST_RUNS} go", code="flag.out-of-range"
        )
    several = []
    for (path, name, kind), seed, steps in product(policies, seeds, latencies):
        own = [name] * (len(policies) > 1)
        latency = [f"latency{steps}"] * (len(latencies) > 1)
        parts = [*own, *[f"seed{seed}"] * (len(seeds) > 1), *latency]
        chosen = {"policy.path": path} if path and path != given else {}
        chosen |= {"policy.type": kind} if kind else {}
        chosen |= {"seed": seed} if len(seeds) > 1 else {}
        chosen |= {"eval.latency_steps": steps} if steps else {}
        pool = "_".join([*own, *latency])
        several.append(Variant("_".join(parts), seed, settings | chosen, pool))
    return several


def _kinds(settings: Mapping[str, Any]) -> list[str]:
    """Return the policy types of ``--policy.type``, where no checkpoint is given."""
    kinds = _once(_listed(_given(settings, "policy", "type"), "policy.type"), "policy.type")
    if len(kinds) > 1 and _given(settings, "policy", "path"):
        raise UsageError(
            "--policy.path states the policy's type itself; leave out --policy.type, or evaluate "
            "the types in a run of their own and use proctor compare",
            code="flag.conflict",
        )
    return kinds


def checkpoints_of(given: Any) -> list[str]:
    """Return the checkpoints of ``--policy.path``: one, a list, or those that match a pattern.

    A folder that is also named by a link (a training's ``last``) is returned once.
    """
    if isinstance(given, str) and _here(given) is not None:
        return [given]
    found: list[str] = []
    for item in _once(_listed(given, "policy.path"), "policy.path"):
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
    place = str(path_of(pattern, "--policy.path"))
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


def _listed(value: Any, flag: str) -> list[str]:
    """Return the items of a flag's list: ``a,b``, ``[a, b]``, or one value."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value] or [""]
    text = str("" if value is None else value).strip().removeprefix("[").removesuffix("]")
    words = [word.strip() for word in text.split(",")]
    if len(words) > 1 and "" in words:
        raise UsageError(
            f"--{flag}: {value!r} has an item without a value; remove the extra comma",
            code="flag.invalid-value",
        )
    return words


def _numbers(value: Any, flag: str) -> list[str]:
    """Return the numbers of a flag's list."""
    words = _listed(value, flag)
    return _once([str(int(w)) if w.isdecimal() else w for w in words], flag)


def _once(words: list[str], flag: str) -> list[str]:
    """Return ``words`` if they differ."""
    for place, word in enumerate(words):
        if word in words[:place]:
            raise UsageError(f"--{flag}: {word} is given twice", code="flag.duplicate")
    return words


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
    """
    root, asked, public = _checked(variants, given)
    of_one_policy = len({_policy_of(variant.settings) for variant in variants}) == 1
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
    show_all([(variant, done[variant.name]) for variant in variants if variant.name in done], root)
    return worst


def _policy_of(settings: Mapping[str, Any]) -> tuple[str, str]:
    return str(_given(settings, "policy", "path")), str(_given(settings, "policy", "type"))


def _checked(
    variants: Sequence[Variant], given: dict[str, str]
) -> tuple[Path, list[dict[str, Any]], dict[str, Any]]:
    """Return the folder of all runs, the settings of each, and the flags without secrets."""
    from proctor.commands.evaluation.eval_settings import reference_run, resumed_run
    from proctor.config.builder import build
    from proctor.config.evaluation import EvalConfig
    from proctor.config.flags.merging import is_resumed, merge_settings
    from proctor.evaluation.preparing import check_ahead_of_time, default_folder
    from proctor.runs.folder import RunFolder, make_new_folder

    first = variants[0].settings
    if is_resumed(first) and "output_dir" not in first:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, which holds the runs to complete",
            code="flag.missing",
        )
    root = path_of(str(first["output_dir"]), "--output_dir") if "output_dir" in first else None
    asked = []
    for variant in variants:
        settings = dict(variant.settings)
        folder = RunFolder((root or Path()) / variant.name)
        begun = root is not None and folder.read() is not None and folder.has_episodes
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
            settings["record"] = str(path_of(str(settings["record"]), "--record") / variant.name)
        kind = variant.settings.get("policy.type")
        named = {"policy.type": kind} if kind and "policy.type" in given else {}
        settings = merge_settings(
            given | named, resumed=resumed_run, reference=reference_run, with_file=settings
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


def show_all(done: Sequence[tuple[Variant, Path]], root: Path) -> None:
    """Print all runs in one table, and compare those with the same episodes.

    Runs of one policy with several seeds are pooled. Several such policies are compared by their
    pooled episodes, paired by task, seed and init state.
    """
    from proctor.report.html.tables import table_console
    from proctor.report.run.multi_run import NamedRun, runs_table
    from proctor.report.run.run import load_run
    from proctor.report.run.selection import best_run_note

    console = table_console()
    loaded: list[tuple[Variant, Run]] = []
    for variant, path in done:
        try:
            loaded.append((variant, load_run(path).require_rate()))
        except UsageError as error:  # it has no episodes to compare; the others do
            print(strip_control_codes(f"note: {error}"))
    runs = [NamedRun(variant.name, run.rows, run.monitored) for variant, run in loaded]
    pools = _pools(loaded, root)
    if runs:
        console.print()
        shown = [NamedRun(_pool_label(run, root), run.rows) for run in pools]
        console.print(runs_table(runs, console.width, pools=shown))
    for variant, run in loaded:
        for warning in run.warnings:
            print(strip_control_codes(f"warning: {variant.name}: {warning}"))
    for run in pools[:1]:
        seeds = sorted({int(variant.seed) for variant, _ in loaded})
        n = max((1 + row.episode_index for _, run in loaded for row in run.rows), default=0)
        if (note := shared_starts_note(run.rows, seeds, n)) is not None:
            print(f"note: {note}")
    best = best_run_note(
        [_pool_label(run, root) for run in pools] or [variant.name for variant, _ in loaded],
        [run.rows for run in pools or [run for _, run in loaded]],
    )
    if best is not None and len({variant.pool for variant, _ in loaded}) > 1:
        print(strip_control_codes(f"note: {best}"))
    if len(pools) > 1:
        _compare(pools, root, "", f" over {len({variant.seed for variant, _ in loaded})} seeds")
    else:
        _compare_by_seed(loaded, root)
    console.print(f"results: {root}", highlight=False, soft_wrap=True, markup=False)


def shared_starts_note(rows: Sequence[EpisodeRecord], seeds: Sequence[int], n: int) -> str | None:
    """Return a note if the pooled episodes of several seeds repeat starts.

    It names the flags that evaluate on others; ``n`` is the episodes of a task and seed.
    """
    from proctor.report.run.summary import clean_rows
    from proctor.stats.independent_units import independent_units

    clean = clean_rows(rows)
    units = independent_units(clean)
    if any(len({row.seed for row in unit}) > 1 for unit in units):
        return (
            "episodes of different seeds start alike here: another --seed adds few starts or none; "
            f"evaluate on others with --seed={seeds[0]} --eval.n_episodes={n * len(seeds)}, as far "
            "as the benchmark has more"
        )
    if len(units) < len(clean):
        apart = ",".join(str(seeds[0] + n * number) for number in range(len(seeds)))
        return f"these seeds share starts; evaluate on others with --seed={apart}"
    return None


def _pools(loaded: Sequence[tuple[Variant, Run]], root: Path) -> list[Run]:
    """Return a run for every policy with several seeds, which has the episodes of all of them.

    Empty if policies have different seeds, or if a stop rule may have ended a run: its interval
    does not hold for pooled episodes.
    """
    from proctor.stats.anytime import NOT_MONITORED

    by_pool: dict[str, dict[str, Run]] = {}
    for variant, run in loaded:
        by_pool.setdefault(variant.pool, {})[variant.seed] = run
    seeds = [set(runs) for runs in by_pool.values()]
    if not seeds or len(seeds[0]) < 2 or any(own != seeds[0] for own in seeds):
        return []
    if any(run.monitored != NOT_MONITORED for _, run in loaded):
        return []
    return [_pooled(root / pool, list(runs.values())) for pool, runs in by_pool.items()]


def _pooled(path: Path, runs: Sequence[Run]) -> Run:
    """Return one run with the episodes of all; ``path`` is a name, and there is no such folder."""
    rows = sorted((row for run in runs for row in run.rows), key=lambda row: row.key)
    planned = sum(run.planned for run in runs)
    record = replace(runs[0].record, planned_episodes=planned)
    return replace(runs[0], path=path, rows=rows, planned=planned, record=record, damaged=[])


def _pool_label(run: Run, root: Path) -> str:
    from proctor.report.run.multi_run import POOLED_ROW

    return POOLED_ROW if run.path == root else f"{run.path.name} {POOLED_ROW}"


def _compare_by_seed(loaded: Sequence[tuple[Variant, Run]], root: Path) -> None:
    """Compare the runs of each seed with the first of them."""
    seeds = dict.fromkeys(variant.seed for variant, _ in loaded)
    for seed in seeds:
        alike = [run for variant, run in loaded if variant.seed == seed]
        if len(alike) > 1:
            _compare(alike, root, seed if len(seeds) > 1 else "")


def _compare(runs: Sequence[Run], root: Path, seed: str, over: str = "") -> None:
    """Compare the runs with the first one, in one line each and on a page.

    P-values are corrected for the number of runs: the best of many looks better than it is.
    """
    from proctor.number_text import points_text
    from proctor.report.compare.comparison import Criteria, compare_all
    from proctor.report.compare.page import write_compare_page
    from proctor.report.compare.table import p_equals

    comparisons = compare_all(runs, Criteria())
    of_seed = f" (seed {seed})" if seed else ""
    many = f"; corrected for {len(comparisons)} comparisons" if len(comparisons) > 1 else ""
    head = f"compared with {runs[0].path.name}{of_seed}{over}, in points{many}:"
    print(strip_control_codes(head))
    for comparison in comparisons:
        overall = comparison.overall
        line = f"{points_text(overall.difference, overall.interval)}, {p_equals(overall.p_holm)}"
        print(strip_control_codes(f"  {comparison.b.name}  {line}: {comparison.verdict}"))
        for warning in comparison.warnings:
            print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
    page = root / (f"compare_seed{seed}.html" if seed else "compare.html")
    print(f"page: {write_compare_page(runs, comparisons, page)}")
