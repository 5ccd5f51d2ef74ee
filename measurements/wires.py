"""What a wire costs: openpi beyond the policy, and what sixteen clients get out of one server.

    python -m measurements.wires

The server is `proctor serve` in a process of its own on this machine's loopback; the policy is told
how long to take, whatever the batch, so that everything else is the wire's.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from measurements.command import PROCTOR, machine, say

from proctor.definition import PRESENTATION
from proctor.features import IMAGES, STATE, ActionSpec, Array, Feature, FeatureKind, Interface
from proctor.machine.memory import keep_large_blocks
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.policies.remote.address import addresses_of
from proctor.policies.remote.groot import GrootLink
from proctor.policies.remote.link import Link, LinkSettings
from proctor.policies.remote.openpi import OpenpiLink
from proctor.policies.remote.vla_eval import VlaEvalLink
from proctor.wire import groot, openpi, vla_eval
from proctor.wire.records import Ask

SIDE, CHUNK, ACTION_SIZE, STATE_SIZE = 224, 50, 7, 8
ASKS, WARM, PER_CLIENT = 500, 50, 40
THINK_MS = 50.0
PICTURE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
NUMBERS = np.zeros(STATE_SIZE, np.float32)


@dataclass
class TwoCamerasConfig(PolicyConfig):
    """How long the policy thinks."""

    type: str = "two_cameras"
    think_ms: float = field(default=0.0, metadata={"help": "milliseconds a batch"} | PRESENTATION)


class TwoCameras(Policy):
    """Takes as long for a batch as for one, and stands still."""

    def __init__(self, config: TwoCamerasConfig, interface: Interface) -> None:
        self.spec = PolicySpec("two cameras", tuple(interface.features), n_action_steps=CHUNK)
        self._think_s = config.think_ms / 1000

    def act(self, batch: Batch) -> Array:
        """Think, and stand still."""
        if self._think_s:
            time.sleep(self._think_s)
        return np.zeros((len(batch.queries), CHUNK, ACTION_SIZE), np.float32)


def offered(config: TwoCamerasConfig) -> Interface:
    picture = Feature(FeatureKind.VISUAL, (SIDE, SIDE, 3), "uint8")
    features = {f"{IMAGES}front": picture, f"{IMAGES}wrist": picture}
    features[STATE] = Feature(FeatureKind.STATE, (STATE_SIZE,), "float32")
    return Interface("two cameras", features, ActionSpec(ACTION_SIZE))


PLUGIN = PolicyPlugin(TwoCamerasConfig, TwoCameras, "two cameras", made_for=offered)


@contextmanager
def served(think_ms: float, *protocols: str) -> Iterator[list[str]]:
    """Serve the policy as a user would; yields the addresses."""
    flags = ["--policy.type=measurements.wires:PLUGIN", f"--policy.think_ms={think_ms}"]
    flags += [f"--protocol={','.join(protocols)}", f"--port=[{','.join('0' * len(protocols))}]"]
    server = subprocess.Popen(  # noqa: S603  our own words
        [*PROCTOR, "serve", *flags], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        said = []
        while (line := server.stdout.readline()) and "Ctrl-C" not in line:
            said.append(line)
        yield re.findall(r"\w+://\S+", "".join(said))
    finally:
        server.terminate()
        server.wait(10)


def asks(words: tuple[str, str, str]) -> Ask:
    first, second, state = words
    return Ask({first: PICTURE, second: PICTURE, state: NUMBERS}, "go")


KINDS = {
    "openpi": (OpenpiLink, asks((*openpi.CAMERAS, openpi.STATE))),
    "vla-eval": (VlaEvalLink, asks((*vla_eval.CAMERAS, vla_eval.STATES[0]))),
    "groot": (GrootLink, asks((*groot.CAMERAS, groot.STATE_NAME))),
}


def linked(kind: str, url: str) -> Link:
    link: Link = KINDS[kind][0](addresses_of(url, None)[0], LinkSettings())
    return link


def overhead() -> None:
    """Say what an answer takes when the policy takes nothing."""
    with served(0.0, "openpi") as (url,):
        link, ask = linked("openpi", url), KINDS["openpi"][1]
        took = []
        for _ in range(WARM + ASKS):
            began = time.perf_counter()
            link.ask(ask)
            took.append(1000 * (time.perf_counter() - began))
        link.close()
    took = sorted(took[WARM:])
    name = f"openpi, 2 pictures of {SIDE}x{SIDE}, no thinking:"
    say(f"{name} p50", f"{statistics.median(took):.2f} ms", "<= 1 ms")
    say(f"{name} p95", f"{took[int(0.95 * ASKS)]:.2f} ms")


def throughput(kinds: list[str], urls: dict[str, str]) -> float:
    """Return answers a second that clients of these kinds get, all together."""
    ready = threading.Barrier(len(kinds) + 1)

    def work(kind: str) -> None:
        link, ask = linked(kind, urls[kind]), KINDS[kind][1]
        link.ask(ask)
        ready.wait()
        for _ in range(PER_CLIENT):
            link.ask(ask)
        link.close()

    clients = [threading.Thread(target=work, args=(kind,)) for kind in kinds]
    for client in clients:
        client.start()
    ready.wait()
    began = time.perf_counter()
    for client in clients:
        client.join()
    return len(kinds) * PER_CLIENT / (time.perf_counter() - began)


def mixed() -> None:
    """Say what sixteen clients of three protocols get, against one."""
    with served(THINK_MS, *KINDS) as addresses:
        urls = dict(zip(KINDS, addresses, strict=True))
        one = throughput(["openpi"], urls)
        many = throughput([list(KINDS)[number % 3] for number in range(16)], urls)
    say(f"one client, a policy of {THINK_MS:g} ms a batch", f"{one:.1f} /s")
    say("16 clients, openpi, vla-eval and GR00T mixed", f"{many:.1f} /s")
    say("ratio", f"{many / one:.1f}", ">= 8")


if __name__ == "__main__":
    print(machine())
    keep_large_blocks()  # as RemotePolicy does
    overhead()
    mixed()
