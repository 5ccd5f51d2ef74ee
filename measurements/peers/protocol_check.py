"""Check every protocol against its real peer: clients and servers must agree to the bit.

    python -m measurements.peers.protocol_check --openpi=PYTHON --vla=PYTHON --lerobot=PYTHON

PYTHON is of a venv with openpi-client 0.1.2 (and numpy<2, typing_extensions), with vla-eval 0.8.0,
or with LeRobot 0.6.1 and grpcio. Peers that are not named are not checked. GR00T has no package.
The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measurements.command import machine, say
from measurements.peers.protocol_peer import MOMENTS, PROMPT, SIZE, image, state
from proctor.commands.evaluation.serve import opened
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.serving import ServeConfig
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation
from proctor.features import ACTION, STATE, Array, Feature, FeatureKind
from proctor.policies.act import config as act
from proctor.policies.act.config import ActConfig
from proctor.policies.callable_policy import PolicyFunction
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.protocols.inference_messages import InferenceRequest
from proctor.serving.server import serving
from proctor.serving.service import PolicyService

CAMERA = "observation.images.cam"
SIDE = Path(__file__).with_name("protocol_peer.py")
CHUNK = 4
RENAMED = {"observation.image": CAMERA}
MISUNDERSTOOD: list[str] = []


def checkpoint(folder: Path) -> Path:
    """Write a small ACT that LeRobot and Proctor both load."""
    inputs = {
        CAMERA: Feature(FeatureKind.VISUAL, (SIZE, SIZE, 3), "uint8"),
        STATE: Feature(FeatureKind.STATE, (2,), "float32"),
    }
    outputs = {ACTION: Feature(FeatureKind.ACTION, (2,), "float32")}
    config = ActConfig(
        input_features=inputs,
        output_features=outputs,
        pretrained_backbone_weights=None,
        device="cpu",
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        dim_model=32,
        n_heads=2,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
    )
    torch.manual_seed(0)
    network = instantiate_network(act.PLUGIN, config).eval()
    usual = {"mean": 0.0, "std": 1.0}
    stats: dict[str, Any] = {}
    for key in (*inputs, *outputs):
        shape = (3, 1, 1) if key == CAMERA else (2,)
        stats[key] = {name: torch.full(shape, value) for name, value in usual.items()}
    pre, post = default_pipelines(config, stats, stats)
    write_checkpoint(LoadedCheckpoint(config, network, act.PLUGIN.prefix, pre, post), folder)
    return folder


def side(python: str, *words: str) -> subprocess.Popen[str]:
    """Start the peer."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if "PROCTOR_WIRE_OVERLAY" in os.environ:  # a folder with grpcio, where a venv has none
        environment["PYTHONPATH"] = os.environ["PROCTOR_WIRE_OVERLAY"]
    return subprocess.Popen(  # noqa: S603  a Python that the user named
        [python, str(SIDE), *words],
        env=environment,
        cwd=tempfile.mkdtemp(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(python: str, *words: str) -> list[Array]:
    """Return the actions that a peer's client received."""
    out, err = side(python, *words).communicate(timeout=300)
    lines = [line for line in out.splitlines() if line.startswith("[[")]
    if not lines:
        raise SystemExit(f"{' '.join(words)}: {err[-2000:]}")
    return [np.asarray(chunk) for chunk in json.loads(lines[-1])]


def answers(counter: PolicyService) -> list[Array]:
    """Return the policy's actions for the same observations, computed in this process."""
    found = []
    guest = counter.batcher.open_session()
    for moment in range(MOMENTS):
        rows = {CAMERA: image(moment), STATE: state(moment)}
        box: queue.SimpleQueue[Any] = queue.SimpleQueue()
        counter.batcher.submit(guest, InferenceRequest({}, PROMPT), rows, box.put)
        found.append(box.get(timeout=60).actions)
    return found


def compare(name: str, theirs: Sequence[Array], ours: Sequence[Array]) -> None:
    """Report whether a client got the policy's actions; LeRobot's skips actions of the past."""
    apart = [
        float(np.abs(theirs - ours[len(ours) - len(theirs) :]).max())
        for theirs, ours in zip(map(np.atleast_2d, theirs), ours, strict=True)
    ]
    worst = max(apart)
    MISUNDERSTOOD.extend([name] * (worst != 0 or not apart))
    say(name, "the same bits" if worst == 0 else f"apart by {worst:.1e}", "the same bits")


def their_clients(given: argparse.Namespace, folder: Path) -> None:
    """Check their clients with our server."""
    names = ["openpi", "vla-eval", "lerobot"]
    settings = {"policy.path": str(folder), "protocol": names, "port": [0, 0, 0]}
    config = build(ServeConfig, settings | {"policy.device": "cpu"})
    with opened(config) as counter, serving(config.endpoints, counter, config.limits(None)) as urls:
        at = dict(zip(names, urls, strict=True))
        ours = answers(counter)
        if given.openpi:
            found = told(given.openpi, "openpi-client", at["openpi"])
            compare("openpi-client 0.1.2 asks ours", found, ours)
        if given.vla:
            found = told(given.vla, "vla-client", at["vla-eval"].replace("vla:", "ws:"))
            # One action for every observation: the first of a chunk of four.
            wanted = [ours[moment - moment % CHUNK][moment % CHUNK] for moment in range(MOMENTS)]
            compare("vla-eval 0.8.0 asks ours", found, [w[None] for w in wanted])
        if given.lerobot:
            place = at["lerobot"].removeprefix("grpc://")
            found = told(given.lerobot, "lerobot-client", place, str(folder))
            compare("LeRobot 0.6.1's robot asks ours", found, ours)


@contextmanager
def their_server(python: str, kind: str) -> Iterator[int]:
    """Run a peer's server on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    running = side(python, kind, str(port))
    until = time.monotonic() + 180
    try:
        while time.monotonic() < until and running.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield port
    finally:
        running.terminate()
        running.communicate(timeout=30)


def evaluated(folder: str, **settings: Any) -> Evaluation:
    """Run a few episodes of the fake benchmark."""
    flags = {
        "env.type": "fake",
        "env.episode_length": 12,
        "eval.n_episodes": 4,
        "eval.batch_size": 2,
        "video.episodes": 0,
        "output_dir": folder,
    }
    flags |= {name.replace("__", "."): value for name, value in settings.items()}
    return run_evaluation(prepare(build(EvalConfig, flags)), flags)


def same(name: str, theirs: Evaluation, ours: Evaluation, within: float = 0.0) -> None:
    """Report how far two runs differ; ``within`` allows for another torch's rounding."""
    first, second = (sorted(run.rows, key=lambda row: row.key) for run in (theirs, ours))
    equal = sum(a.digest == b.digest for a, b in zip(first, second, strict=True))
    rewards = [[row.sum_reward or 0.0 for row in run] for run in (first, second)]
    apart = max(abs(a - b) for a, b in zip(*rewards, strict=True))
    MISUNDERSTOOD.extend([name] * (apart > within))
    say(name, f"{equal} of {len(first)} digests", f"rewards apart by at most {apart:.1e}")


def their_servers(given: argparse.Namespace, folder: Path, runs: Callable[[], str]) -> None:
    """Check their servers with our client."""
    import proctor

    if given.vla:
        with their_server(given.vla, "vla-server") as port:
            url = f"vla://127.0.0.1:{port}"
            theirs = evaluated(runs(), policy__type="remote", policy__url=url)

        def home(seen: dict[str, Any]) -> Array:
            walked = np.clip(-seen[STATE], -1, 1)
            return np.repeat(walked[None], CHUNK, axis=0)

        walk = PolicyFunction(home, inputs=[STATE], name="home")
        chunked = {"episode_length": 12, "type": "fake"}
        ours = proctor.evaluate(
            walk, chunked, n_episodes=4, video={"episodes": 0}, output_dir=runs()
        )
        same("we ask vla-eval 0.8.0's server, against the same in process", theirs, ours)
    if given.lerobot:
        renamed: dict[str, Any] = {"rename_map": RENAMED}
        with their_server(given.lerobot, "lerobot-server") as port:
            theirs = evaluated(
                runs(),
                policy__type="remote",
                policy__url=f"grpc://127.0.0.1:{port}",
                policy__served=str(folder),
                policy__served_type="act",
                policy__actions_per_chunk=CHUNK,
                **renamed,
            )
        ours = evaluated(runs(), policy__path=str(folder), policy__device="cpu", **renamed)
        same("we ask LeRobot 0.6.1's server, its ACT against ours", theirs, ours, within=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m measurements.peers.protocol_check")
    for name in ("openpi", "vla", "lerobot"):
        parser.add_argument(f"--{name}", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        folder = checkpoint(Path(place, "act"))
        numbers = iter(range(100))
        their_clients(given, folder)
        their_servers(given, folder, lambda: str(Path(place, f"run{next(numbers)}")))
    if MISUNDERSTOOD:
        raise SystemExit(f"not understood: {'; '.join(MISUNDERSTOOD)}")


if __name__ == "__main__":
    main()
