"""The scenario of one trial, determined by the seed and the trial's number before it runs."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from proctor.benchmarks.fake import Fault
from tests.chaos.policy import ChaosPolicy, PolicyFault

N_TASKS, N_EPISODES, HORIZON = 3, 8, 20
PLAN = [("point", task, index) for task in range(N_TASKS) for index in range(N_EPISODES)]
WATCHDOG_S = 2.0


class Mode(Enum):
    """How the episodes are run."""

    PROCESSES = "processes"
    IN_PROCESS = "in-process"
    LOCKSTEP = "lockstep"


class Attack(Enum):
    """A disturbance of a run from outside."""

    KILL_WORKER = "a worker is killed"
    STOP_WORKER = "a worker is stopped"
    KILL_PARENT = "the parent is killed"
    STOP_WORKER_KILL_PARENT = "a worker is stopped, the parent killed"
    KILL_FORK_SERVER = "the fork server is killed"
    INTERRUPT = "SIGINT"
    INTERRUPT_TWICE = "SIGINT twice"
    TERMINATE = "SIGTERM"
    HANG_UP = "SIGHUP"
    CLOSE_PIPE = "the reader of its output goes away"
    CROWD = "a crowd connects to --live and says nothing"
    SUSPEND = "everything is stopped, then continued"
    FILL_DISK = "the disk fills up"
    SHRINK_MEMORY = "the shared memory is cut off"
    SECOND_RUN = "a second run in the folder"
    BLOCK_SESSION_LOG = "a recorder fails to close"


class Surrounding(Enum):
    """The environment in which every session of a run starts."""

    CLOSED = "streams that are closed"
    FULL = "output to a full disk"
    NO_LOCKS = "no locks"
    FEW_FILES = "ulimit -n 40"


class Damage(Enum):
    """Damage of a power cut to the journal, after the parent was killed."""

    CUT = "last line cut"
    NO_NEWLINE = "last newline missing"
    ZEROS = "last line ends in zeros"
    ZERO_LINE = "last line is zeros"
    HALF_LINE = "half a line more"


@dataclass(frozen=True)
class Moment:
    """When to attack: a time after the session has finished a number of episodes."""

    episodes: int
    delay_s: float
    begun: bool = True
    """Without episodes: after the run folder exists, not after the process does."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault, and the settings of runs that it applies to."""

    name: str
    modes: tuple[Mode, ...]
    fault: Fault | None = None
    policy_fault: PolicyFault | None = None
    attack: Attack | None = None
    damage: Damage | None = None
    surroundings: Surrounding | None = None
    flags: tuple[str, ...] = ()
    """Flags that replace those of the mode."""
    moment: Moment | None = None
    """When to attack; None: at any time."""


_ENDLESS = (Fault.HANG, Fault.STOP, Fault.LEAK)
"""Faults that need a worker in its own process, which can be replaced."""
_SURVIVED = (
    Attack.KILL_WORKER,
    Attack.STOP_WORKER,
    Attack.KILL_FORK_SERVER,
    Attack.SUSPEND,
    Attack.SHRINK_MEMORY,
    Attack.SECOND_RUN,
    Attack.CLOSE_PIPE,
    Attack.CROWD,
)
"""Faults that a run survives without being resumed."""
_ANY_MODE = (
    Attack.KILL_PARENT,
    Attack.INTERRUPT,
    Attack.INTERRUPT_TWICE,
    Attack.TERMINATE,
    Attack.HANG_UP,
    Attack.CLOSE_PIPE,
    Attack.BLOCK_SESSION_LOG,
)


def _kinds() -> list[Kind]:
    everywhere, processes = tuple(Mode), (Mode.PROCESSES,)
    kinds = [
        Kind(f"simulator: {fault.value}", processes if fault in _ENDLESS else everywhere, fault)
        for fault in Fault
    ]
    kinds += [
        Kind(f"policy: {fault.value}", everywhere, policy_fault=fault) for fault in PolicyFault
    ]
    kinds += [
        Kind(attack.value, everywhere if attack in _ANY_MODE else processes, attack=attack)
        for attack in Attack
    ]
    kinds += [
        Kind(f"power cut: {damage.value}", everywhere, attack=Attack.KILL_PARENT, damage=damage)
        for damage in Damage
    ]
    kinds += [
        Kind(around.value, everywhere, surroundings=around)
        for around in (Surrounding.CLOSED, Surrounding.FULL, Surrounding.FEW_FILES)
    ]
    no_locks = Surrounding.NO_LOCKS
    kinds += [
        Kind(f"{no_locks.value}: {attack.value}", modes, attack=attack, surroundings=no_locks)
        for attack, modes in ((Attack.KILL_PARENT, everywhere), (Attack.SECOND_RUN, processes))
    ]
    return [
        *kinds,
        # One worker hangs until the watchdog's timeout; the others have no work left.
        Kind(
            "the fork server is killed, workers idle",
            processes,
            fault=Fault.HANG,
            attack=Attack.KILL_FORK_SERVER,
            flags=("--eval.batch_size=8",),
            moment=Moment(len(PLAN) - 1, 0.2),
        ),
        Kind(
            "a worker is stopped while filming",
            processes,
            attack=Attack.STOP_WORKER,
            flags=("--video.which=all", "--video.episodes=1", "--video.every=1"),
            moment=Moment(len(PLAN), 0.3),
        ),
    ]


KINDS = _kinds()


@dataclass(frozen=True)
class Scenario:
    """One trial."""

    seed: int
    number: int
    kind: Kind
    mode: Mode
    flags: tuple[str, ...]
    moments: tuple[Moment, ...]
    """One for each disturbed session."""
    to_group: bool
    """Whether signals go to all processes, as from a terminal, or only to the parent."""

    @property
    def survived(self) -> bool:
        """Whether the disturbed session itself must end well."""
        kind = self.kind
        replaced = kind.fault is not None and self.mode is Mode.PROCESSES
        only_around = kind.surroundings is not None and kind.attack is None
        return replaced or only_around or kind.attack in _SURVIVED

    @property
    def replay(self) -> str:
        """The command that runs this trial again."""
        return f"python -m tests.chaos --seed={self.seed} --only={self.number}"


def marks_in(home: Path) -> Path:
    """Return the folder in which simulator and policy record that they have failed."""
    return home / "marks"


def make_scenario(seed: int, number: int, home: Path) -> Scenario:
    """Make the scenario of trial ``number`` in ``home``; every kind comes equally often."""
    rng = random.Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    weights = [4 if mode is Mode.PROCESSES else 1 for mode in kind.modes]
    (mode,) = rng.choices(kind.modes, weights)
    sessions = rng.choice((1, 1, 1, 2)) if kind.attack is not None and not kind.moment else 1
    return Scenario(
        seed=seed,
        number=number,
        kind=kind,
        mode=mode,
        flags=_flags(kind, mode, rng, marks_in(home)),
        moments=tuple(kind.moment or _moment(rng) for _ in range(sessions)),
        to_group=rng.random() < 0.5,
    )


def _flags(kind: Kind, mode: Mode, rng: random.Random, marks: Path) -> tuple[str, ...]:
    own = {flag.split("=")[0] for flag in kind.flags}
    usual = (*_mode_flags(mode, rng), *_fault_flags(kind, rng, marks))
    return (*(flag for flag in usual if flag.split("=")[0] not in own), *kind.flags)


def common_flags(placement: str) -> list[str]:
    """Return the flags that every trial and the undisturbed run share."""
    return [
        f"--policy.type=tests.chaos.policy:{placement}",
        "--env.type=fake",
        f"--env.n_tasks={N_TASKS}",
        f"--env.episode_length={HORIZON}",
        f"--eval.n_episodes={N_EPISODES}",
    ]


def _mode_flags(mode: Mode, rng: random.Random) -> list[str]:
    flags = common_flags(rng.choice(("ENGINE", "WORKER")))
    flags += ["--env.step_ms=2", f"--eval.watchdog_s={WATCHDOG_S}", "--eval.max_retries=10"]
    filmed = rng.random() < 0.15
    flags += ["--video.which=first", "--video.episodes=1"] if filmed else ["--video.episodes=0"]
    n_workers = rng.choice((2, 3))
    match mode:
        case Mode.PROCESSES:
            flags.append(f"--eval.batch_size={n_workers}")
        case Mode.IN_PROCESS:
            flags += [f"--eval.batch_size={n_workers}", "--eval.use_async_envs=false"]
        case Mode.LOCKSTEP:
            flags += [f"--eval.batch_size={n_workers}", "--eval.scheduler=lockstep"]
    return flags


def _fault_flags(kind: Kind, rng: random.Random, marks: Path) -> list[str]:
    _, task, index = rng.choice(PLAN)
    step = rng.randrange(6)
    if kind.fault is not None:
        faults = json.dumps({f"{task}/{index}/{step}": kind.fault.value})
        return [f"--env.faults={faults}", f"--env.break_once_in={marks}"]
    if kind.policy_fault is not None:
        place = f"{task}/{index}/{step // 3 * ChaosPolicy.spec.n_action_steps}"
        return [
            f"--policy.fault={kind.policy_fault.value}",
            f"--policy.fault_at={place}",
            f"--policy.break_once_in={marks}",
        ]
    if kind.attack is Attack.CROWD:
        return ["--live", "--live_port=0"]
    return []


def _moment(rng: random.Random) -> Moment:
    """Choose a moment during start-up, in the middle, or near the end."""
    if rng.random() < 0.3:
        return Moment(0, rng.uniform(0, 0.6), begun=rng.random() < 0.6)
    return Moment(rng.randrange(1, len(PLAN) + 1), rng.uniform(0, 0.06))
