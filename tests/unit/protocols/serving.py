"""Policy servers for tests, in this process and on a free port."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import zmq

from proctor.commands.evaluation.serve import opened
from proctor.config.builder import build
from proctor.config.serving import ServeConfig
from proctor.features import IMAGE, STATE, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.serving.server import serving
from proctor.serving.service import PolicyService
from proctor.types import EpisodeSpec

RANDOM = {"policy.type": "random", "policy.n_action_steps": 4, "env.type": "fake"}


@contextlib.contextmanager
def served(**settings: Any) -> Iterator[tuple[str, PolicyService]]:
    """Serve a policy, by default the random one of the fake benchmark; yield URL and service."""
    told = {name.replace("__", "."): value for name, value in settings.items()}
    given = {"env.type": "fake"} if "policy.type" in told else RANDOM
    config = build(ServeConfig, {**given, **told, "port": [0]})
    limits = config.limits(config.api_key)
    with opened(config) as service, serving(config.endpoints, service, limits) as addresses:
        yield addresses[0], service


class Steady(Policy):
    """Acts on the state, and takes equally long for a batch and for one row."""

    def __init__(self, config: PolicyConfig, interface: Interface) -> None:
        self.spec = PolicySpec("steady", (STATE,), n_action_steps=2)
        self.sizes: list[int] = []

    def act(self, batch: Batch) -> Array:
        self.sizes.append(len(batch.queries))
        time.sleep(0.01)
        return np.repeat(-np.clip(batch.observations[STATE], -1, 1), 2, axis=1)


STEADY = PolicyPlugin(PolicyConfig, Steady, "walks home")


@contextlib.contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on a free port and pass every connection to ``behave``; yield the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            open_ones.append(connection)
            threading.Thread(target=_behaving, args=(behave, connection), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()
        for connection in open_ones:
            connection.close()


def _behaving(behave: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with contextlib.suppress(OSError), connection:
        behave(connection)


@contextlib.contextmanager
def odd_openpi(answer: Callable[[Any, bytes], None]) -> Iterator[str]:
    """Serve openpi as another implementation would, and answer every request by ``answer``."""
    from websockets.server import ServerProtocol

    from proctor.protocols.formats.msgpack_arrays import pack

    def behave(connection: socket.socket) -> None:
        protocol = ServerProtocol(max_size=None)

        def flush() -> None:
            for part in protocol.data_to_send():
                connection.sendall(part) if part else connection.shutdown(socket.SHUT_WR)

        def say(frame: bytes | str) -> None:
            if isinstance(frame, str):
                protocol.send_text(frame.encode())
            else:
                protocol.send_binary(frame)
            flush()

        message = b""
        while data := connection.recv(2**20):
            protocol.receive_data(data)
            for event in protocol.events_received():
                if hasattr(event, "path"):
                    protocol.send_response(protocol.accept(event))
                    flush()
                    say(pack({}))
                elif event.opcode in (0, 1, 2):
                    message += bytes(event.data)
                    if event.fin:
                        whole, message = message, b""
                        answer(say, whole)
            flush()

    with peer(behave) as port:
        yield f"ws://127.0.0.1:{port}"


class Looking(Policy):
    """Acts on two steps of image and state, on the instruction, and on random numbers."""

    def __init__(self, config: PolicyConfig, interface: Interface) -> None:
        self.spec = PolicySpec("looking", (IMAGE, STATE), n_obs_steps=2, n_action_steps=3)

    def new_episode(self, spec: EpisodeSpec) -> np.random.Generator:
        return np.random.default_rng([spec.seed, spec.index])

    def act(self, batch: Batch) -> Array:
        words = [len(query.spec.task.instruction) + query.step for query in batch.queries]
        image = batch.observations[IMAGE].astype(np.float64).mean(axis=(1, 2, 3, 4)) / 256
        state = batch.observations[STATE].astype(np.float64).sum(axis=(1, 2))
        chance = [query.state.uniform() for query in batch.queries]
        walked = np.sin(image + state + np.asarray(words) + np.asarray(chance))
        return np.broadcast_to(walked[:, None, None], (len(words), 3, 2))


LOOKING = PolicyPlugin(PolicyConfig, Looking, "walks by all that it sees")


def npy(values: Any) -> dict[str, Any]:
    """Encode an array as GR00T N1.5 and N1.6 do, by numpy's own writer."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def msgpack_numpy(values: Any) -> dict[bytes, Any]:
    """Encode an array as msgpack_numpy does."""
    told = {b"nd": True, b"type": values.dtype.str, b"kind": b"", b"shape": values.shape}
    return {**told, b"data": values.tobytes()}


def asked(url: str, request: Any) -> Any:
    """Send a request over ZeroMQ as GR00T's client does."""
    with zmq.Context() as context, context.socket(zmq.REQ) as line:
        line.setsockopt(zmq.LINGER, 0)
        line.setsockopt(zmq.RCVTIMEO, 10_000)
        line.connect(url)
        line.send(msgspec.msgpack.encode(request))
        return msgspec.msgpack.decode(line.recv())
