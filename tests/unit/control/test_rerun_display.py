"""Rerun shows ticks under LeRobot's paths, and never makes the loop wait."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proctor.cli import main
from proctor.config.sections.display import DisplayFlags
from proctor.control.robot_frames import ControlStep
from proctor.control.terminal.live_page import LivePage
from proctor.control.terminal.rerun_display import (
    DisplayedTick,
    RerunDisplay,
    load_rerun,
    rerun_display,
)
from proctor.control.terminal.watching import LoopDisplay
from proctor.errors import MissingExtra, UsageError
from tests.refusals import refuses
from tests.unit.control.trial_robots import ReachRobot

IMAGE = np.zeros((6, 8, 3), np.uint8)


class FakeStream:
    """Notes what is logged; ``gate`` holds the thread."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, str, bool]] = []
        self.times: list[float] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def set_time(self, timeline: str, *, duration: float) -> None:
        self.gate.wait(60)
        self.times.append(duration)

    def log(self, path: str, entity: Any, *, static: bool = False) -> None:
        if self.error is not None:
            raise self.error
        self.logged.append((path, entity, static))

    def flush(self) -> None:
        pass


RERUN = SimpleNamespace(
    Scalars=lambda value: "scalar",
    Image=lambda image: SimpleNamespace(compress=lambda: "jpeg"),
    DepthImage=lambda image: "depth",
)


def tick(time_s: float, image: Any = IMAGE) -> DisplayedTick:
    return DisplayedTick(time_s, {"arm.pos": 1.0, "front": image}, {"arm.pos": 2.0})


def test_paths_are_lerobots_and_a_repeated_image_is_sent_once() -> None:
    stream = FakeStream()
    display = RerunDisplay(RERUN, stream, compress=True)
    display.show(tick(0.0))
    display.show(tick(0.1))
    display.show(tick(0.2, np.zeros((6, 8, 1), np.uint16)))
    display.close()
    scalars = [("observation.arm.pos", "scalar", False), ("action.arm.pos", "scalar", False)]
    first = [scalars[0], ("observation.front", "jpeg", True), scalars[1]]
    last = [scalars[0], ("observation.front", "depth", True), scalars[1]]
    assert stream.logged == [*first, *scalars, *last]
    assert (stream.times, display.dropped) == ([0.0, 0.1, 0.2], 0)


def test_a_slow_viewer_loses_the_oldest_ticks() -> None:
    stream = FakeStream()
    stream.gate.clear()
    display = RerunDisplay(RERUN, stream)
    for number in range(50):
        display.show(tick(float(number)))
    stream.gate.set()
    display.close()
    assert stream.times[-8:] == [float(number) for number in range(42, 50)]
    assert display.dropped == 50 - len(stream.times) >= 40


def test_a_failing_viewer_ends_the_display_only(capsys: pytest.CaptureFixture[str]) -> None:
    stream = FakeStream()
    stream.error = RuntimeError("gone")
    display = RerunDisplay(RERUN, stream)
    display.show(tick(0.0))
    display.close()
    display.show(tick(0.1))
    assert "gone" in capsys.readouterr().err


def test_without_rerun_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingExtra):
        load_rerun()
    robot = "--robot.type=tests.fake_robots:ROBOT"
    teleop = "--teleop.type=tests.fake_robots:TELEOPERATOR"
    assert main(["teleoperate", robot, teleop, "--display_data=true"]) == 2


def test_an_absent_viewer_is_said_before_the_robot_moves() -> None:
    pytest.importorskip("rerun")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        flags = DisplayFlags(
            display_data=True, display_ip="127.0.0.1", display_port=closed.getsockname()[1]
        )
        with refuses(UsageError, "display.no-viewer"), rerun_display(flags, "test"):
            pass


def test_blind_trials_are_shown_without_the_policies_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, ids = FakeStream(), []

    def make_stream(name: str, recording_id: str) -> Any:
        ids.append(recording_id)
        return stream

    fake = SimpleNamespace(**vars(RERUN), RecordingStream=make_stream)
    monkeypatch.setitem(sys.modules, "rerun", fake)
    monkeypatch.setattr(
        "proctor.control.terminal.rerun_display._open_viewer", lambda stream, flags: None
    )
    here = "tests.unit.control.trial_robots"
    words = [f"--robot.type={here}:ROBOT", f"--policy.type={here}:good,{here}:bad", "--fps=10"]
    words += ["--eval.n_episodes=1", "--eval.episode_time_s=0.5", f"--output_dir={tmp_path}"]
    assert main(["eval", *words, "--display_data=true"]) == 0
    assert {"observation.arm.pos", "action.arm.pos"} <= {path for path, _, _ in stream.logged}
    assert len(ids) == 1
    assert "good" not in ids[0]


def test_a_recording_of_rerun_has_the_paths(tmp_path: Path) -> None:
    rerun = pytest.importorskip("rerun")
    stream = rerun.RecordingStream("proctor", recording_id="test")
    stream.save(str(tmp_path / "shown.rrd"))
    display = RerunDisplay(rerun, stream, compress=True)
    display.show(tick(0.5))
    display.show(tick(0.6, np.ones((6, 8), np.uint16)))
    display.close()
    stream.disconnect()
    content = (tmp_path / "shown.rrd").read_bytes()
    assert display.shown == 2
    for path in (b"observation.arm.pos", b"observation.front", b"action.arm.pos"):
        assert path in content


@pytest.mark.alone
def test_a_tick_costs_the_loop_microseconds() -> None:
    robot, stream = ReachRobot(), FakeStream()
    shown = LoopDisplay(robot, LivePage(robot, None), RerunDisplay(RERUN, stream))
    one = ControlStep({"arm.pos": 1.0, "front": IMAGE}, {}, {"arm.pos": 2.0}, 0.0)
    stream.gate.clear()
    costs = []
    for _ in range(50):
        start = time.perf_counter()
        shown.on_tick("recording", 0.0, one)
        costs.append(time.perf_counter() - start)
    stream.gate.set()
    assert min(costs) < 200e-6
