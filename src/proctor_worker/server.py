"""Serves one world to Proctor: receives requests, calls the simulator, sends replies."""

import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from typing import Any, Dict, Optional, Sequence, Tuple

from proctor_worker import PROTOCOL
from proctor_worker.boundary import WrongValue, as_flag, as_number, as_numbers, numbers_by_name
from proctor_worker.guard import start_guard
from proctor_worker.records import EXPERT_ACTION, Refused

RESULT = struct.Struct("<dbb")
"""A step's reward, success (-1: unknown) and end, at the start of a reply's payload."""
_LONGEST_TRACEBACK = 20_000
_HOLD_S = 0.01
"""Results of steps are held back for this time, so that one message has those of many steps."""


def pack_numbers(numbers: Sequence[Any]) -> bytes:
    """Return numbers as the bytes that follow a step's ``RESULT``."""
    return struct.pack("<%dd" % len(numbers), *numbers)


def unpack_numbers(reply: bytes, start: int = RESULT.size) -> Tuple[float, ...]:
    """Return the numbers from byte ``start`` on, by default those after a step's ``RESULT``."""
    return struct.unpack_from("<%dd" % ((len(reply) - start) // 8), reply, start)


def serve_descriptors(words: Sequence[str]) -> None:
    """Serve over inherited descriptors: ``SOCKET MEMORY SIZE LIFE``; MEMORY may be -1."""
    socket, memory, size, life = (int(word) for word in words)
    start_guard(life)
    _serve(socket, os.dup(socket), (memory, size) if memory >= 0 else None)


def serve_stdio() -> None:
    """Serve over stdin and stdout; what the world prints goes to stderr."""
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_exit_with, args=(reading,), daemon=True).start()
    _serve(reading, writing, None)


def _exit_with(descriptor: int) -> None:
    """End this process when the other side has closed the connection, also during a long call."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only the end is reported
    poll.poll()
    os._exit(1)


def _serve(reading: int, writing: int, memory: Optional[Tuple[int, int]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import numpy  # noqa: F401  the frames import it at their first use

        from proctor_worker.channel import Channel
        from proctor_worker.frames import ChannelClosed
        from proctor_worker.shared_ring import SharedRing
    except ImportError as missing:
        _say_without_numpy(writing, str(missing))
        os._exit(3)
    ring = None if memory is None else SharedRing(*memory)
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.append(os.getcwd())  # noqa: PTH109  last: user code named by the flags
    channel = Channel(reading, writing, ring)
    server = _Server(channel)
    channel.send({"op": "hello", "protocol": PROTOCOL, "python": sys.version.split()[0]})
    try:
        while True:
            header, _, arrays = channel.receive()
            server.handle(header, arrays)
    except ChannelClosed:
        pass
    finally:
        os._exit(0)  # skips the shutdown: GL drivers may hang there


def _say_without_numpy(writing: int, text: str) -> None:
    """Send the hello of an interpreter that lacks numpy: ``frames`` cannot be imported."""
    import json

    header = json.dumps({"op": "refused", "text": text, "code": "env.no-numpy", "arrays": []})
    encoded = header.encode()
    os.write(writing, struct.pack("<4sIQ", b"PRW2", len(encoded), 0) + encoded)


class adapter_code:  # noqa: N801  used as a context manager, like contextlib.suppress
    """Mark a block of a simulator's methods as the adapter's own code, not the simulator's.

    An error that leaves the block is not counted as the policy's.
    """

    active = False

    def __enter__(self) -> None:
        self._before = adapter_code.active
        adapter_code.active = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            adapter_code.active = self._before


class _Server:
    """The world of this process, and at most one simulator."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._world: Any = None
        self._sim: Any = None
        self._located = False
        """Whether the simulator has coordinates."""
        self._steps_left = 0
        """Steps until the limit ends the episode."""
        self._handlers = {
            "make": self._make,
            "describe": self._describe,
            "preflight": self._preflight,
            "open": self._open,
            "reset": self._reset,
            "run": self._run,
            "observe": self._observe,
            "physics": self._physics,
            "coordinates": self._coordinates,
            "close": self._close,
        }

    def handle(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        """Answer a request; an exception of the world is a reply too."""
        adapter_code.active = False
        try:
            self._handlers[header["op"]](header, arrays)
        except Refused as error:
            self._channel.send({"op": "refused", "text": str(error), "code": error.code})
        except WrongValue as error:
            text = "%s: %s" % (type(self._sim).__name__, error)
            self._channel.send({"op": "refused", "text": text, "code": error.code})
        except BaseException as error:
            if type(error).__name__ == "ChannelClosed":
                raise
            self._channel.send(raised_header(error, adapter=adapter_code.active))

    def _make(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        """Import the world's module and make the world."""
        import importlib

        os.environ.update(header["environment"])
        module, _, function = header["world"].partition(":")
        self._world = getattr(importlib.import_module(module), function or "make")(header["config"])
        self._channel.send({"op": "made"})

    def _describe(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        from proctor_worker.distributions import interpreter_facts

        description = self._world.describe()
        facts = interpreter_facts(description["distributions"])
        checks = hasattr(self._world, "preflight")
        self._channel.send(
            {
                "op": "described",
                "description": description,
                "interpreter": facts,
                "checks": checks,
            }
        )

    def _preflight(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        preflight = getattr(self._world, "preflight", None)
        variables = {} if preflight is None else preflight(tuple(header["keys"]))
        self._channel.send({"op": "checked", "variables": variables})

    def _open(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        from proctor_worker.rng import SEED_BEFORE_RESET, seed_global_rng

        self._close_sim()
        seed_global_rng(SEED_BEFORE_RESET)
        self._sim = self._world.open(header["task"])
        self._located = hasattr(self._sim, "coordinates")
        self._channel.send({"op": "opened", "located": self._located})

    def _reset(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        from proctor_worker.rng import seed_global_rng

        spec = header["spec"]
        seed_global_rng(spec["seed"])
        self._sim.reset(spec)
        self._steps_left = spec["max_steps"]
        state = _numeric({"physics": self._sim.physics()})
        measured = hasattr(self._sim, "start_state")
        start = numbers_by_name(self._sim.start_state()) if measured else {}
        positions = self._positions() if self._located else {}
        if header["keys"]:
            state.update(_numeric(self._sim.observe(header["keys"])))
        fields = {
            "op": "reset",
            "coordinates": tuple(positions),
            "start": tuple(start),
            "start_tolerance": getattr(self._sim, "start_tolerance", None),
        }
        numbers = pack_numbers([*start.values(), *positions.values()])
        self._channel.send(fields, state, numbers, key=tuple(fields.values()))

    def _run(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        """Execute actions; reply to each, until they are used up or the episode ends.

        After the actions from number ``observed`` on, ``keys`` are observed; after the numbers in
        ``located``, coordinates are read. ``expert_steps`` more steps follow: the action of each is
        the expert's, as observed after the step before. The reply to an episode's last step has the
        physics state.

        Replies are sent together, if the other side sees in shared memory how far the steps are.
        """
        import numpy

        sim, channel, actions = self._sim, self._channel, arrays["actions"]
        keys, observed, located = header["keys"], header["observed"], header["located"]
        total = len(actions) + header["expert_steps"]
        until = total - 1 if header["expert_steps"] else total  # nothing acts on the last one
        begun = None if channel.ring is None else channel.ring.steps_begun
        sent_at = time.perf_counter()
        seen: Dict[str, Any] = {}
        for number in range(total):
            if number >= len(actions):
                action = numpy.asarray(seen[EXPERT_ACTION], numpy.float32)
            else:
                action = actions[number]
            if begun is not None:
                begun[0] += 1
            reward, success, terminated, scores = read_step(sim.step(action))
            self._steps_left -= 1
            ended = terminated or self._steps_left <= 0
            positions = self._positions() if number in located or (ended and self._located) else {}
            if ended:
                seen = _numeric({"physics": sim.physics()})
            else:
                seen = _numeric(sim.observe(keys)) if observed <= number < until else {}
            flag = -1 if success is None else int(success)
            result = RESULT.pack(reward, flag, terminated)
            if scores or positions:
                result += pack_numbers([*scores.values(), *positions.values()])
            named = (tuple(scores), tuple(positions))
            fields = {"op": "stepped", "scores": named[0], "coordinates": named[1]}
            last = ended or number == total - 1
            hold = not last and begun is not None and time.perf_counter() - sent_at < _HOLD_S
            channel.send(fields, seen, result, key=named, hold=hold)
            if not hold:
                sent_at = time.perf_counter()
            if terminated:
                break

    def _observe(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        self._channel.send({"op": "observed"}, _numeric(self._sim.observe(header["keys"])))

    def _physics(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        self._channel.send({"op": "state"}, _numeric({"physics": self._sim.physics()}))

    def _coordinates(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        self._channel.send({"op": "located", "coordinates": self._positions()})

    def _positions(self) -> Dict[str, float]:
        return numbers_by_name(self._sim.coordinates())

    def _close(self, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
        self._close_sim()
        self._channel.send({"op": "done"})

    def _close_sim(self) -> None:
        sim, self._sim = self._sim, None
        if sim is not None:
            sim.close()


def read_step(step: Any) -> Tuple[float, Optional[bool], bool, Dict[str, float]]:
    """Return reward, success, end and scores of a world's ``Step``, with Python's own types.

    Raises:
        WrongValue: it is no ``Step``, or a value of it has the wrong type.
    """
    if not isinstance(step, tuple) or not 3 <= len(step) <= 4:
        raise WrongValue("step gave a %s, not a Step" % type(step).__name__)
    success = None if step[1] is None else as_flag(step[1], "success")
    scores = step[3] if len(step) > 3 and step[3] else {}
    reward, terminated = as_number(step[0], "the reward"), as_flag(step[2], "terminated")
    return reward, success, terminated, numbers_by_name(scores)


def _numeric(arrays: Dict[str, Any]) -> Dict[str, Any]:
    """Return a world's arrays.

    Raises:
        WrongValue: one has no numbers.
    """
    return {name: as_numbers(value, name) for name, value in arrays.items()}


def raised_header(error: BaseException, *, adapter: bool) -> Dict[str, Any]:
    """Return the reply that passes an exception on: its class, text and traceback."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
    if len(text) > _LONGEST_TRACEBACK:
        text = text[: _LONGEST_TRACEBACK // 4] + "\n[...]\n" + text[-_LONGEST_TRACEBACK * 3 // 4 :]
    return {
        "op": "raised",
        "module": type(error).__module__,
        "type": type(error).__name__,
        "lineage": [base.__name__ for base in type(error).__mro__],
        "text": str(error)[:_LONGEST_TRACEBACK],
        "traceback": text,
        "adapter": adapter,
    }
