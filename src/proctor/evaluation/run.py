"""One evaluation from config to results: checks everything, then runs what is missing."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.config.evaluation import EvalConfig
from proctor.engine.pool import check_importable
from proctor.errors import RunFolderError, UsageError
from proctor.evaluation.filming import Filmed, filming_environment
from proctor.evaluation.head_start import begin_early
from proctor.evaluation.plan import descriptors_for, make_plan, workers_within
from proctor.evaluation.prepared import Prepared
from proctor.evaluation.session import FilmRecorders, Rest, Session
from proctor.evaluation.tracking import tracked
from proctor.machine.system import (
    allow_descriptors,
    git_commit,
    torch_machine,
    usable_cores,
    usable_memory_bytes,
    versions,
)
from proctor.policies.fit import check_offered
from proctor.recorders.base import Recorder
from proctor.recorders.stopper import Stopper
from proctor.recorders.wandb import read_run_id, require_wandb
from proctor.report.page import write_page
from proctor.report.pairing import RunResults, load_run, paired_outcomes
from proctor.report.protocols import require_same_worlds
from proctor.report.stopped import kind_of_interval, round_warnings
from proctor.report.summary import Tally, eval_info, tally
from proctor.report.worlds import world_warnings
from proctor.runs.effort import read_effort
from proctor.runs.folder import EVAL_INFO_FILE, RunFolder, RunRecord, write_json
from proctor.runs.journal import EpisodeRow, cut_torn_line, read_journal
from proctor.runs.videos import read_warnings, remove_unfinished
from proctor.stats.anytime import NOT_WATCHED, Watched, watched
from proctor.stats.stopping import Heard, PairedTest, StopRule, parse_stop_rule
from proctor.types import EpisodeSpec

MakeRecorders = Callable[[Prepared, Sequence[EpisodeRow]], list[Recorder]]
"""Makes the outputs of a session besides the journal, given the episodes that stay as they are."""


@dataclass(frozen=True)
class Evaluation:
    """A run after a session on it."""

    path: Path
    planned: int
    rows: list[EpisodeRow]
    stopped: str | None = None
    """Why no further episode is needed, when a stop rule has decided."""
    watched: Watched = NOT_WATCHED
    """How a stop rule watched the rates."""
    filmed: Filmed = field(default_factory=Filmed)

    @property
    def tally(self) -> Tally:
        """What all episodes add up to."""
        return tally(self.rows, self.watched.overall)

    @property
    def complete(self) -> bool:
        """Whether every planned episode has ended."""
        return len(self.rows) == self.planned

    def __str__(self) -> str:
        return str(self.tally)


def prepare(config: EvalConfig) -> Prepared:
    """Check that everything ``config`` names exists and fits together.

    Runs no simulator and writes nothing; what will take time is begun (see ``head_start``).

    Raises:
        UsageError: with one line that says what to change.
    """
    default = config.output_dir is None
    folder = RunFolder(config.output_dir or default_folder(config), or_next=default)
    make_benchmark = partial(plugins.find_benchmark(config.env.type).make, config.env)
    benchmark = make_benchmark()
    plugin = plugins.find_policy(config.policy.type)
    if config.eval.use_async_envs:  # first: what workers are forked from has the limit it finds
        allow_descriptors(descriptors_for(config.eval.batch_size))
    begin_early(benchmark, in_workers=config.eval.use_async_envs, images=plugin.has_network)
    interface = interface_of(benchmark)
    policy = plugin.make(config.policy, interface)
    if not hasattr(policy, "act"):
        made = type(policy).__name__
        raise UsageError(f"--policy.type={config.policy.type} makes a {made}, which is no policy")
    check_offered(policy.inputs, interface, f"policy {policy.name!r}")
    prepared = Prepared(
        config=config,
        make_benchmark=make_benchmark,
        benchmark=benchmark,
        policy=policy,
        features={key: interface.features[key] for key in policy.inputs},
        plan=make_plan(benchmark, config.eval.indices, config.seed),
        environment=benchmark.preflight(policy.inputs),
        folder=folder,
    )
    check_importable(prepared.worker_setup)
    _check_memory(prepared)
    _check_descriptors(prepared)
    return prepared


def _check_memory(prepared: Prepared) -> None:
    """Refuse observations that this machine cannot hold, before anything is reserved for them."""
    one = sum(feature.nbytes for feature in prepared.features.values())
    workers = prepared.workers(len(prepared.plan))
    needed, there = workers * prepared.policy.n_obs_steps * one, usable_memory_bytes()
    if needed > there // 2:
        raise UsageError(
            f"the observations of {workers} simulators take {needed / 2**30:.1f} GiB of this "
            f"machine's {there / 2**30:.1f}; lower --eval.batch_size or the size of the images"
        )


def _check_descriptors(prepared: Prepared) -> None:
    """Refuse more workers than this process may have open files for."""
    if not prepared.config.eval.use_async_envs:
        return
    workers = prepared.workers(len(prepared.plan))
    needed = descriptors_for(workers)
    allowed = allow_descriptors(needed)
    if allowed < needed:
        fits = workers_within(allowed)
        way_out = f"--eval.batch_size={fits} fits" if fits else "allow more"
        raise UsageError(
            f"{workers} simulators take {needed} open files and {allowed} are allowed here "
            f"(ulimit -n); {way_out}"
        )


def make_stopper(prepared: Prepared) -> Stopper:
    """Return what decides when to stop.

    Raises:
        UsageError: the run to compare with cannot be, or has none of the planned episodes.
    """
    config = prepared.config
    rule = parse_stop_rule(config.eval.stop_when)
    rules: list[StopRule] = [] if rule is None else [rule]
    if config.against is not None:
        reference = load_run(config.against)
        protocols = reference.record.protocol, prepared.protocol()
        require_same_worlds(
            *protocols,
            f"--against: {config.against} and this run",
            "leave out the --env flags to run its own",
        )
        shared = _whole_rounds(prepared.plan, reference)
        rules.append(PairedTest(shared, str(config.against), config.alpha))
    return Stopper(prepared.plan, rules)


def _whole_rounds(plan: list[EpisodeSpec], reference: RunResults) -> list[Heard]:
    """Return how the reference did in the rounds it holds of every planned task, up to a gap.

    A round of some tasks only would bet on those alone; and past the first gap, a run that was
    interrupted holds what had ended quickly.

    Raises:
        UsageError: there is no such round.
    """
    outcomes = paired_outcomes(plan, reference)
    rounds: dict[int, list[EpisodeSpec]] = {}
    for spec in plan:
        rounds.setdefault(spec.index, []).append(spec)
    whole: list[Heard] = []
    for _, specs in sorted(rounds.items()):
        if not all(spec.key in outcomes for spec in specs):
            break
        whole += [Heard(spec.key, spec.world_key, outcomes[spec.key]) for spec in specs]
    if not outcomes:
        raise UsageError(
            f"--against: {reference.path} has none of the planned episodes "
            "(task, seed, init state); leave out --seed and --env.task to run its own"
        )
    if not whole:
        n_tasks = len({spec.task.key for spec in plan})
        raise UsageError(
            f"--against: {reference.path} does not hold episode {min(rounds)} of all {n_tasks} "
            "planned tasks, so no round can be compared: complete it with --resume, or choose its "
            "tasks with --env.task"
        )
    return whole


def default_folder(config: EvalConfig) -> Path:
    """Return ``outputs/eval/DATE/TIME_ENV_POLICY``; where that is taken, a number comes after."""
    name = f"%H-%M-%S_{config.env.type}_{config.policy.type}".replace(":", "-").replace("/", "-")
    return Path("outputs", "eval", time.strftime("%Y-%m-%d"), time.strftime(name))


def run_evaluation(
    prepared: Prepared,
    given: dict[str, Any],
    make_recorders: MakeRecorders | None = None,
    film_recorders: FilmRecorders = lambda episodes: [],
) -> Evaluation:
    """Run the episodes of ``prepared`` that its folder does not hold yet, then film some of them.

    Raises:
        UsageError: the folder holds another run, or the run to compare with cannot be, or videos
            or W&B were asked for and cannot be had here.
        RunFolderError: the folder is in use or cannot be written.
        KeyboardInterrupt: passed on, after everything finished is on disk.
    """
    folder, stopper = prepared.folder, make_stopper(prepared)
    _check_outputs(prepared)
    with folder.locked(), _live_page(prepared):
        record = folder.joined(_record(prepared, given), resume=prepared.config.resume)
        done = read_journal(folder.path).rows
        read_effort(folder.path)  # what the end of the run reads must not fail only then
        read_warnings(folder.path)
        if prepared.config.wandb.active:
            read_run_id(folder.path)
        _check_planned(prepared.plan, done, folder.path)
        folder.write(record)  # nothing is refused from here on
        cut_torn_line(folder.path)
        remove_unfinished(folder.path)
        before = [row for row in done if row.outcome.counts]
        for row in before:
            stopper.hear(row.key, row.outcome)
        rest = _rest_of(prepared.plan, done, decided=stopper.decided)
        with tracked(prepared, record, before) as trackers, Session(prepared) as session:
            try:
                if rest.specs:
                    outputs = [] if make_recorders is None else make_recorders(prepared, before)
                    session.run(rest, [*outputs, *trackers], stopper)
            finally:
                rows = _write_results(prepared, record, stopper)
            filmed = session.film(rows, film_recorders)
    order = {spec.key: place for place, spec in enumerate(prepared.plan)}
    rows.sort(key=lambda row: order[row.key])
    return Evaluation(
        path=folder.path,
        planned=len(prepared.plan),
        rows=rows,
        stopped=stopper.decision,
        watched=watched(record.resolved),
        filmed=filmed,
    )


def _check_outputs(prepared: Prepared) -> None:
    """Refuse before anything starts what was asked for and cannot be had here."""
    video, wandb = prepared.config.video, prepared.config.wandb
    if video.asked and video.per_task:
        filming_environment(prepared.benchmark)
    if wandb.active:
        require_wandb(wandb)


def _write_results(prepared: Prepared, record: RunRecord, stopper: Stopper) -> list[EpisodeRow]:
    """Write what the journal adds up to, also when a session ended early; return the episodes."""
    folder = prepared.folder.path
    rows = read_journal(folder).rows
    info = eval_info(
        rows, len(prepared.plan), record.sessions, stopper.decision, watched(record.resolved)
    )
    effort = read_effort(folder)
    info["proctor"] |= {"infer_s": effort.infer_s, "mean_batch": effort.mean_batch}
    info["proctor"]["warnings"] = world_warnings(rows) + round_warnings(rows, record.resolved)
    info["proctor"]["interval"] = kind_of_interval(record.resolved)
    write_json(folder / EVAL_INFO_FILE, info)
    if not isinstance(sys.exception(), RunFolderError):  # a full disk has no room for it
        write_page(folder)
    return rows


@contextmanager
def _live_page(prepared: Prepared) -> Iterator[None]:
    """Serve the run's page while it goes on, if that was asked for."""
    config = prepared.config
    if not config.live:
        yield
        return
    from proctor.evaluation.live import serving

    with serving(prepared.folder.path, config.live_host, config.live_port) as address:
        print(f"live: {address}", file=sys.stderr, flush=True)
        yield


def _record(prepared: Prepared, given: dict[str, Any]) -> RunRecord:
    return RunRecord(
        given={key: value for key, value in given.items() if key not in ("resume", "output_dir")},
        resolved=prepared.config.as_dict(),
        protocol=prepared.protocol(),
        versions=versions((*prepared.benchmark.distributions, "gymnasium", "numpy")),
        machine={
            "platform": platform.platform(),
            "usable_cores": usable_cores(),
            "git_commit": git_commit(),
            **torch_machine(),
        },
        sessions=[time.time()],
        planned_episodes=len(prepared.plan),
        bit_reproducible=prepared.bit_reproducible,
    )


def _check_planned(plan: list[EpisodeSpec], done: Sequence[EpisodeRow], path: Path) -> None:
    planned = {spec.key: spec for spec in plan}
    extra = {row.key for row in done} - planned.keys()
    if extra:
        raise UsageError(
            f"--resume: {path} holds {len(extra)} episodes that are not planned now, "
            f"as {min(extra)}; ask for at least the tasks and --eval.n_episodes it was run with"
        )
    for row in done:
        found = row.disagreement(planned[row.key])
        if found is not None:
            raise UsageError(
                f"--resume: {row.key} in {path} is another episode than the one planned now "
                f"({found}); its journal was changed or mixed up: choose another --output_dir"
            )


def _rest_of(plan: list[EpisodeSpec], done: Sequence[EpisodeRow], *, decided: bool) -> Rest:
    """Return the episodes to run: once a rule has decided, only those of rounds that have begun.

    An earlier session that ended amid its rounds has left the quick episodes of them, which are
    the successes. What errored is tried again: the cause may be mended.
    """
    sound = {row.key for row in done if row.outcome.counts}
    begun = max((row.episode_index for row in done), default=-1)
    missing = (spec for spec in plan if spec.key not in sound)
    return Rest([spec for spec in missing if spec.index <= begun or not decided], begun)
