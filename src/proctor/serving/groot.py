"""GR00T's conversation: requests and replies over ZeroMQ, a guest for every client and row."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from proctor.errors import MissingExtra, ProctorError, WireError, one_line
from proctor.serving.counter import Counter
from proctor.serving.desk import Answered, Guest
from proctor.serving.heard import Client, Heard
from proctor.serving.limits import Limits, Opened, cannot_serve
from proctor.wire import groot, groot_dialect
from proctor.wire.packing import OURS
from proctor.wire.records import Ask

try:
    import zmq
    import zmq.asyncio
except ImportError as error:
    raise MissingExtra(error.name or "pyzmq", "wire") from None


async def listen(counter: Counter, port: int, limits: Limits) -> Opened:
    """Listen on ``port`` (0: any free one).

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, limits.most_bytes)
    socket.setsockopt(zmq.RCVHWM, 4)  # of one client, which waits for each answer
    socket.setsockopt(zmq.SNDHWM, 4)
    if ":" in limits.host:
        socket.setsockopt(zmq.IPV6, 1)
    host = "127.0.0.1" if limits.host == "localhost" else limits.host
    host = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        context.destroy(0)
        why = str(error.strerror).partition(" (")[0]
        raise cannot_serve(limits.host, port, why) from None
    endpoint = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0")
    bound = int(endpoint.rpartition(b":")[2])
    talk = _Talk(socket, counter, limits)
    listening = asyncio.ensure_future(talk.listen())

    async def close() -> None:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        context.destroy(0)

    return Opened(bound, close)


class _Talk:
    """Hears requests, and answers each as soon as it can."""

    def __init__(self, socket: Any, counter: Counter, limits: Limits) -> None:
        self._socket, self._counter, self._limits = socket, counter, limits
        self._clients: Heard[Client] = Heard(counter.desk, limits, Client)
        self._answering: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Hear requests until cancelled."""
        while True:
            name, *parts = await self._socket.recv_multipart()
            if len(parts) != 2 or parts[0]:
                continue  # none of REQ's: nobody waits for an answer
            if len(self._answering) >= self._limits.most_guests:
                busy = groot.encode_reply({"error": "too many requests (--max_connections)"})
                await self._socket.send_multipart([name, b"", busy])
                continue
            client = self._clients.client(name)
            task = asyncio.ensure_future(self._answer(name, client, parts[1]))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, name: bytes, client: Client, frame: bytes) -> None:
        try:
            reply = await self._reply(client, groot.decode_request(frame))
        except ProctorError as error:
            reply = groot.encode_reply({"error": one_line(str(error))})
        await self._socket.send_multipart([name, b"", reply])

    async def _reply(self, client: Client, request: groot.Request) -> bytes:
        if not self._limits.admits(request.api_token):
            raise WireError("Unauthorized: the API token is missing or wrong")
        match request.endpoint:
            case groot.PING:
                return groot.encode_reply({"status": "ok", "message": "Server is running"})
            case groot.ABOUT:
                return groot.encode_reply({OURS: self._counter.about.tree()})
            case groot.RESET:
                for guest in client.guests:
                    self._counter.desk.end_episode(guest)
                return groot.encode_reply({"status": "ok"})
            case groot.CONFIG:
                return groot.encode_reply(self._modalities())
            case groot.ACT:
                return await self._act(client, groot.asked_of(request.data), newer=request.newer)
            case groot.KILL:
                raise WireError("a client does not end this server")
            case other:
                raise WireError(f"Unknown endpoint: {one_line(other, 100)}")

    def _modalities(self) -> dict[str, Any]:
        names = self._counter.inputs.aliases(groot.CAMERAS, groot.STATE_NAME)
        group, _, key = groot_dialect.PROMPT_NAME.partition("/")
        keys: dict[str, list[str]] = {"video": [], "state": [], "action": ["action"], group: [key]}
        for name in names.values():
            group, _, key = name.partition("/")
            keys[group].append(key)
        back = range(1 - self._counter.inputs.n_obs_steps, 1)
        ahead = range(self._counter.about.n_action_steps or 1)
        moments = {"video": back, "state": back, "action": ahead}
        return {
            name: groot_dialect.modality(moments.get(name, [0]), found)
            for name, found in keys.items()
        }

    async def _act(self, client: Client, asked: groot.Asked, *, newer: bool) -> bytes:
        guests = self._clients.guests(client, len(asked.rows))
        answers = await asyncio.gather(
            *(self._one(guest, ask) for guest, ask in zip(guests, asked.rows, strict=True))
        )
        chunks = [answered.actions for answered in answers]
        return groot.encode_actions(chunks, nested=asked.nested, newer=newer)

    async def _one(self, guest: Guest, ask: Ask) -> Answered:
        cameras = [key for key in ask.observation if key.startswith(groot.VIDEO)]
        states = [key for key in ask.observation if key.startswith(groot.STATE)]
        aliases = self._counter.inputs.aliases(cameras, states[0] if states else groot.STATE_NAME)
        ask = _joined(ask, states)
        if ask.episode is None:
            ask = groot.looking_back(ask, self._counter.inputs.n_obs_steps)
        return await self._counter.answer(guest, ask, aliases)


def _joined(ask: Ask, states: list[str]) -> Ask:
    """Return a question whose parts of the state lie side by side, under the first one's name."""
    if len(states) < 2:
        return ask
    try:
        whole = np.concatenate([ask.observation[key] for key in states], axis=-1)
    except ValueError:
        raise WireError(f"{', '.join(states)} do not lie side by side") from None
    rest = {key: values for key, values in ask.observation.items() if key not in states}
    return Ask({**rest, states[0]: whole}, ask.prompt, ask.episode, ask.step, ask.history)
