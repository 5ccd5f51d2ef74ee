"""SIGKILL the learner and the actor of online trainings at random moments.

    python -m measurements online_faults [learner actor remote acknowledged] [--kills=20] [--tiny]

learner        kill `proctor train-online` and resume it, until it ends
actor          kill its actor process, which the learner restarts
remote         kill a learner or its actor of another process, connected by gRPC, and start it again
acknowledged   kill a learner while an actor notes which transitions were acknowledged

In lockstep every file of the last checkpoint must have the bytes of an undisturbed training, except
train_config.json, which names its folder. Counted are trainings with other bytes, transitions of
the undisturbed journal that are missing or different, and acknowledged transitions that are gone.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import torch
from safetensors.torch import load_file

from measurements.command import PROCTOR, make_parser, run_parts, say
from proctor.policies.lerobot.processors.processors import Pipeline
from proctor.rl.link.links import InProcessLink, LearnerEndpoint
from proctor.rl.replay.journal import Journal
from proctor.rl.replay_storage import ReplayStorage, StorageSettings
from proctor.rl.transitions import Transition
from proctor.system.files import sha256_of

FLAGS = [
    "--env.type=fake",
    "--env.episode_length=25",
    "--policy.type=gaussian_actor",
    "--policy.latent_dim=16",
    "--policy.actor_network_kwargs={hidden_dims: [16, 16]}",
    "--policy.online_step_before_learning=50",
    "--policy.online_buffer_capacity=300",
    "--policy.device=cpu",
    "--algorithm.critic_network_kwargs.hidden_dims=[16,16]",
    "--algorithm.utd_ratio=2",
    "--batch_size=16",
    "--rl.lockstep=true",
    "--rl.fix=batch",
    "--save_freq=150",
    "--keep_last=2",
    "--seed=5",
]
STATE = "observation.state"


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a training; its output goes to ``log``."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        command = [*PROCTOR, "train-online", *words]
        return subprocess.Popen(command, stdout=file, stderr=file, env=variables)  # noqa: S603


def files_of(folder: Path) -> dict[str, str]:
    """Return a hash of each file of the last checkpoint.

    The order of a safetensors file's metadata is random, so its tensors are hashed.
    """
    last, found = folder / "checkpoints/last", {}
    for path in sorted(last.rglob("*")):
        name = path.relative_to(last).as_posix()
        if path.suffix == ".safetensors":
            digest = hashlib.sha256()
            for key, tensor in sorted(load_file(path).items()):
                digest.update(key.encode() + tensor.contiguous().numpy().tobytes())
            found[name] = digest.hexdigest()
        elif path.is_file() and path.name != "train_config.json":
            found[name] = sha256_of(path)
    return found


def transitions_of(folder: Path) -> list[tuple[object, ...]]:
    """Return the journal of a training as comparable values."""
    journal = Journal(folder / "replay/online")
    return [
        (
            one.actor,
            one.number,
            one.transition.reward,
            one.transition.done,
            one.transition.truncated,
            one.transition.action.tobytes(),
            *(array.tobytes() for array in one.transition.observation.values()),
            *(array.tobytes() for array in one.transition.next_observation.values()),
        )
        for one in journal.read(journal.first, len(journal))
    ]


def stored_bytes(folder: Path) -> int:
    """Return the size of a training's journal, without opening it."""
    return sum(file.stat().st_size for file in (folder / "replay/online").glob("*.journal"))


class Reference:
    """An undisturbed training, and the comparison of others with it."""

    def __init__(self, scratch: Path, steps: int, *, remote: bool = False) -> None:
        self.begin = [*FLAGS, f"--policy.online_steps={steps}"]
        folder = scratch / "whole"
        if remote:
            RemotePair(scratch, "whole", self.begin).run(iter(()))
        elif start([*self.begin, f"--output_dir={folder}"], scratch / "whole.log").wait():
            sys.exit((scratch / "whole.log").read_text())
        self._files, self._steps = files_of(folder), steps
        self._transitions = transitions_of(folder)[:steps]
        self.bytes = stored_bytes(folder)

    def check(self, folder: Path) -> bool:
        """Return whether a training ended with the same bytes and the same transitions."""
        same = files_of(folder) == self._files
        return same and transitions_of(folder)[: self._steps] == self._transitions

    def wait_for_share(
        self, process: subprocess.Popen[bytes], folder: Path, before: int, share: float
    ) -> bool:
        """Wait until the journal has grown by ``share`` of all bytes; False: the process ended."""
        while process.poll() is None:
            if stored_bytes(folder) - before > share * self.bytes:
                return True
            time.sleep(0.005)
        return False


class RemotePair:
    """A learner and its actor, connected by gRPC. The actor's name decides its seeds."""

    def __init__(self, scratch: Path, name: str, flags: list[str]) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            address = f"--learner=127.0.0.1:{found.getsockname()[1]}"
        self.folder, self._log = scratch / name, scratch / f"{name}.log"
        acting = scratch / f"{name}-actor"
        acting.mkdir()
        (acting / "actor.txt").write_text("actor-0")
        learner = ["--role=learner", address, f"--output_dir={self.folder}"]
        self._begin, self._resume = [*flags, *learner], ["--resume", *learner]
        self._act = [*flags, "--role=actor", address, f"--output_dir={acting}"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, kills: Iterator[tuple[str, float]]) -> Counter[str]:
        """Run to the end; return the kills by role.

        ``kills`` yields the role to kill, and the growth of the journal in bytes until then.
        """
        done: Counter[str] = Counter()
        self._start("actor")
        self._start("learner")
        (role, growth), before = next(kills, ("learner", math.inf)), 0
        while any(process.poll() is None for process in self._processes.values()):
            time.sleep(0.005)
            stored = stored_bytes(self.folder)
            if stored - before <= growth or self._processes[role].poll() is not None:
                continue
            self._processes[role].kill()
            self._processes[role].wait()
            done[role] += 1
            self._start(role)
            (role, growth), before = next(kills, ("learner", math.inf)), stored
        if any(process.returncode for process in self._processes.values()):
            sys.exit(self._log.read_text())
        return done

    def _start(self, role: str) -> None:
        resumed = (self.folder / "train.json").exists()
        words = self._act if role == "actor" else (self._resume if resumed else self._begin)
        self._processes[role] = start(words, self._log)


def kill_remote(scratch: Path, kills: int, steps: int) -> None:
    """Kill learners and actors of other processes ``kills`` times in all, and start them again."""
    moments = random.Random(4)  # noqa: S311  repeatable, not secret
    reference, runs, different = Reference(scratch, steps, remote=True), 0, 0
    done: Counter[str] = Counter()

    def drawn() -> Iterator[tuple[str, float]]:
        while True:
            yield moments.choice(["learner", "actor"]), moments.uniform(0.02, 0.4) * reference.bytes

    while done.total() < kills:
        runs += 1
        pair = RemotePair(scratch, f"remote-{runs}", reference.begin)
        done += pair.run(drawn())
        different += not reference.check(pair.folder)
        print(f"training {runs}: {done.total()} kills so far", flush=True)
    counted = f"{done['learner']} kills of the learner and {done['actor']} of the actor"
    say(f"remote trainings of {runs} with other bits after {counted}", str(different))


def kill_learner(scratch: Path, kills: int, steps: int) -> None:
    """Kill learners ``kills`` times in all while transitions arrive, and resume them."""
    moments = random.Random(1)  # noqa: S311  repeatable, not secret
    reference, done, runs, different = Reference(scratch, steps), 0, 0, 0
    while done < kills:
        runs += 1
        folder, log = scratch / f"learner-{runs}", scratch / f"learner-{runs}.log"
        words = [*reference.begin, f"--output_dir={folder}"]
        while True:
            before, process = stored_bytes(folder), start(words, log)
            if not reference.wait_for_share(process, folder, before, moments.uniform(0.02, 0.2)):
                break
            time.sleep(moments.uniform(0.0, 0.3))
            process.kill()
            process.wait()
            done += 1
            words = ["--resume", f"--output_dir={folder}"]
        if process.returncode:
            sys.exit(log.read_text())
        different += not reference.check(folder)
        print(f"training {runs}: {done} kills of learners so far", flush=True)
    say(f"trainings of {runs} with other bits after {done} kills of the learner", str(different))


def kill_actor(scratch: Path, kills: int, steps: int) -> None:
    """Kill actor processes ``kills`` times in all; their learner restarts them."""
    moments = random.Random(2)  # noqa: S311  repeatable, not secret
    reference, done, runs, different = Reference(scratch, steps), 0, 0, 0
    while done < kills:
        runs += 1
        folder, log = scratch / f"actor-{runs}", scratch / f"actor-{runs}.log"
        process = start([*reference.begin, f"--output_dir={folder}"], log)
        while reference.wait_for_share(
            process, folder, stored_bytes(folder), moments.uniform(0.02, 0.2)
        ):
            for actor in actors_of(process.pid):
                actor.kill()
                done += 1
        if process.returncode:
            sys.exit(log.read_text())
        different += not reference.check(folder)
        print(f"training {runs}: {done} kills of actors so far", flush=True)
    say(f"trainings of {runs} with other bits after {done} kills of the actor", str(different))


def actors_of(learner: int) -> list[psutil.Process]:
    """Return the actor processes of a learner."""
    try:
        children = psutil.Process(learner).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


def kill_acknowledging(scratch: Path, kills: int, steps: int) -> None:
    """Kill learners while an actor notes the transitions that were acknowledged."""
    moments = random.Random(3)  # noqa: S311  repeatable, not secret
    context = multiprocessing.get_context("fork")
    noted = lost = 0
    for run in range(kills):
        folder = scratch / f"acknowledged-{run}"
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=acknowledge_forever, args=(folder, theirs))
        process.start()
        theirs.close()
        ours.recv()  # the first one
        time.sleep(moments.uniform(0.0, 0.3))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        last = 0
        try:
            while True:
                last = ours.recv()
        except EOFError:
            pass
        noted += last
        lost += max(0, last - len(Journal(folder / "online")))
    say(f"acknowledged transitions lost, of {noted} in {kills} kills", str(lost))


def acknowledge_forever(folder: Path, noted: Connection) -> None:
    """Store transitions as a learner does, and note each acknowledgement."""
    settings = StorageSettings(
        (STATE,), 2, 1000, 1000, 8, 0.5, 0, frozenset(), "cpu", torch.device("cpu"), 10**9
    )
    storage = ReplayStorage(folder, settings, Pipeline("none", ()))
    endpoint = LearnerEndpoint(storage.positions)
    link = InProcessLink(endpoint, "actor-0")
    link.begin(replay=True)
    state, number = np.zeros(3, np.float32), 0
    while True:
        link.send([Transition({STATE: state}, state[:2], 0.0, {STATE: state}, False)] * 3)
        received = endpoint.take()
        storage.write(received)
        endpoint.acknowledge(received)
        number += 3
        assert link.wait_acknowledged(1.0)
        noted.send(number)


PARTS: dict[str, Callable[[Path, int, int], None]] = {
    "learner": kill_learner,
    "actor": kill_actor,
    "remote": kill_remote,
    "acknowledged": kill_acknowledging,
}


def main(words: Sequence[str]) -> int:
    parser = make_parser("online_faults", __doc__, list(PARTS))
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind")
    parser.add_argument("--steps", type=int, default=400, help="environment steps of a training")
    given = parser.parse_args(words)
    kills, steps = (2, 200) if given.tiny else (given.kills, given.steps)

    def part(name: str) -> Callable[[Path], None]:
        def measure(scratch: Path) -> None:
            folder = scratch / name
            folder.mkdir()
            PARTS[name](folder, kills, steps)

        return measure

    run_parts(given.parts, {name: part(name) for name in PARTS})
    return 0
