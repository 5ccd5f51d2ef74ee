"""Requests and replies on a serial line, without stale replies.

A reply that comes after its timeout must never answer a later request. Three rules see to that:

* The input is emptied before each request.
* Replies are matched by motor id and size; other packets are dropped.
* A motor that missed a timeout is suspect. Before the next request to it, a read of a size that no
  other request uses is sent. Motors answer in order, so its reply proves that no older one is due.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from proctor.errors import DeviceNotConnected
from proctor.robots.buses.packets import HIGHEST_ID, PacketCodec, Reply, Request
from proctor.robots.buses.ports import PORT_ERRORS, SerialPort

_BITS_PER_BYTE = 10
_FIRST_TIMEOUT_S = 0.05
"""Patience before any reply was measured: LeRobot's timeout for Feetech motors."""
_TIMEOUT_STEPS_S = (0.012, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Timeouts in use: setting one costs system calls, so it changes in steps."""
_FORGETTING = 0.98
"""Factor by which a measured peak latency fades with each reply."""
_MARGIN = 4.0
"""Timeout in peak latencies."""
_SHORTEST_LATENCY_S = 0.001
_RESYNC_SIZES = range(7, 40)
"""Read sizes of resynchronisation; no register and no other request has such a size."""


@dataclass
class LineStatistics:
    """Counts since the line was opened."""

    requests: int = 0
    lost: Counter[int] = field(default_factory=Counter)
    """Motor id -> replies that never came in time or were corrupt."""
    corrupt: int = 0
    stray: int = 0
    """Packets that did not belong to the request, such as late replies."""


class SerialLine:
    """A port with a packet codec."""

    def __init__(
        self,
        port: SerialPort,
        codec: PacketCodec,
        now: Callable[[], float] = time.perf_counter,
        *,
        name: str,
    ) -> None:
        """Take an open port; ``name`` is what the user calls it."""
        self.port = port
        self.codec = codec
        self._now, self._name = now, name
        self.statistics = LineStatistics()
        self._suspects: set[int] = set()
        self._resync_sizes = itertools.cycle(_RESYNC_SIZES)
        self._peak_latency_s: float | None = None
        self._timeout_s = -1.0

    def send(self, packet: bytes) -> None:
        """Send a packet that no motor answers."""
        self.statistics.requests += 1
        try:
            self.port.write(packet)
        except PORT_ERRORS as error:
            raise self._port_lost(error) from error

    def exchange(self, request: Request, *, send_to_suspects: bool = False) -> dict[int, Reply]:
        """Send a request and return the replies that came in time, by motor id.

        Args:
            request: the request.
            send_to_suspects: send even if a motor did not resynchronise. The request takes effect
                if the motor hears it; its reply would not be trusted, so it is not waited for.
        """
        try:
            if self._suspects and self._resynchronise(request.ids):
                if send_to_suspects:
                    self.send(request.packet)
                return {}
            return self._exchange(request)
        except PORT_ERRORS as error:
            raise self._port_lost(error) from error

    def collect(self, packet: bytes, window_s: float) -> list[Reply]:
        """Send a broadcast and return all replies within ``window_s`` seconds."""
        everyone = Request(b"", tuple(range(HIGHEST_ID + 1)), 0, 0)
        try:
            self.port.reset_input_buffer()
            self.send(packet)
            self._set_timeout(window_s)
            received = self.port.read(1 << 12)
        except PORT_ERRORS as error:
            raise self._port_lost(error) from error
        found = self.codec.scan(received, everyone)
        self.statistics.corrupt += found.corrupt
        self._suspects |= set(everyone.ids) - {reply.id for reply in found.replies}
        return found.replies

    def forget_suspects(self) -> None:
        """Drop what is known of late replies, as after a change of the baud rate."""
        self._suspects.clear()
        self._peak_latency_s = None

    def _resynchronise(self, ids: Iterable[int]) -> set[int]:
        """Return those of ``ids`` that are suspect and do not answer."""
        for motor_id in self._suspects.intersection(ids):
            request = self.codec.read(motor_id, 0, next(self._resync_sizes))
            if motor_id in self._exchange(request):
                self._suspects.discard(motor_id)
        return self._suspects.intersection(ids)

    def _exchange(self, request: Request) -> dict[int, Reply]:
        port, count = self.port, len(request.ids)
        self.statistics.requests += 1
        port.reset_input_buffer()
        start = self._now()
        port.write(request.packet)
        if not count:
            return {}
        self._set_timeout(self._timeout_of(request))
        received = port.read(request.reply_size)
        replies = self.codec.match(received, request)
        if replies is not None:
            self._measure(start, request)
            return {reply.id: reply for reply in replies}
        return self._gather(received, request, start)

    def _gather(self, received: bytes, request: Request, start: float) -> dict[int, Reply]:
        """Find the replies among noise, strays and damaged packets; wait for those still due."""
        replies: dict[int, Reply] = {}
        deadline = start + self._timeout_s
        while True:
            found = self.codec.scan(received, request)
            self.statistics.corrupt += found.corrupt
            for reply in found.replies:
                if reply.id not in replies and self._answers(reply, request):
                    replies[reply.id] = reply
                else:
                    self.statistics.stray += 1
            missing = [motor_id for motor_id in request.ids if motor_id not in replies]
            if not missing:
                self._measure(start, request)
                return replies
            if found.corrupt >= len(missing):
                break
            if self._now() >= deadline and not self.port.in_waiting:
                break  # a busy computer may be late itself: what has arrived counts
            due = len(missing) * (request.reply_size // len(request.ids)) - len(found.rest)
            more = self.port.read(max(due, 1))
            if not more:
                break
            received = found.rest + more
        self._suspects.update(missing)
        self.statistics.lost.update(missing)
        if not replies:  # the whole line may be slower than measured
            peak_s = _FIRST_TIMEOUT_S / _MARGIN if self._peak_latency_s is None else 0.0
            self._peak_latency_s = min(
                2 * max(peak_s, self._peak_latency_s or 0.0, _SHORTEST_LATENCY_S),
                _TIMEOUT_STEPS_S[-1] / _MARGIN,
            )
        return replies

    def _answers(self, reply: Reply, request: Request) -> bool:
        if reply.id not in request.ids:
            return False
        refused = not reply.data and bool(self.codec.refusal(reply.error))
        return len(reply.data) == request.data_size or refused

    def _timeout_of(self, request: Request) -> float:
        """Return the patience for a request: its time on the wire and a multiple of the latency."""
        if self._peak_latency_s is None:
            latency_s = _FIRST_TIMEOUT_S
        else:
            latency_s = _MARGIN * self._peak_latency_s
        wanted = latency_s + self._wire_time(request)
        return next((step for step in _TIMEOUT_STEPS_S if step >= wanted), _TIMEOUT_STEPS_S[-1])

    def _wire_time(self, request: Request) -> float:
        size = len(request.packet) + request.reply_size
        return size * _BITS_PER_BYTE / self.port.baudrate

    def _measure(self, start: float, request: Request) -> None:
        latency_s = max(self._now() - start - self._wire_time(request), 0.0)
        self._peak_latency_s = max(latency_s, _FORGETTING * (self._peak_latency_s or 0.0))

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self.port.timeout = timeout_s
            self._timeout_s = timeout_s

    def _port_lost(self, error: Exception) -> DeviceNotConnected:
        return DeviceNotConnected(
            f"the serial port {self._name} is gone ({error}); check the cable and the power",
            code="robot.port-lost",
        )
