"""The simulated cell: arms, cameras, a scene and a clock that devices of one process share.

A port is named ``sim[:virtual][:left|right][:DEVICE]``. "sim" is the cell in real time,
"sim:virtual" the one whose time passes only while the control loop sleeps. DEVICE is a name of
``ARM_MODELS``; without one it is the SO-101 follower, whose joints have physics.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from proctor.benchmarks.so101.kinematics import to_units
from proctor.benchmarks.so101.world import SCENE_STATE_NAMES, So101World
from proctor.errors import MissingExtra, UsageError, did_you_mean
from proctor.features import Array
from proctor.robots.base import Clock, RealClock
from proctor.robots.emulation.arm_models import ARM_MODELS, WorldJoints
from proctor.robots.emulation.emulated_bus import EmulatedPort
from proctor.robots.emulation.joints import Joints
from proctor.robots.emulation.simulated_arm import SimulatedArm

_FOLLOWER = "so_follower"
_VIRTUAL = "virtual"
_SIDES = ("left", "right")
_LONGEST_CATCH_UP_S = 0.25
"""Of real time without any device in use, more than this is skipped."""


@dataclass(frozen=True)
class SimulatedPortName:
    """The parts of a simulated port's name."""

    virtual: bool
    side: str
    """"left" or "right" arm of two, else empty."""
    device: str

    @property
    def has_physics(self) -> bool:
        """Whether it is the arm at the table."""
        return self.device == _FOLLOWER and not self.side


def parse_port(name: str) -> SimulatedPortName:
    """Return the parts of a simulated port's name."""
    virtual, side, device = False, "", _FOLLOWER
    for part in name.split(":")[1:]:
        if part == _VIRTUAL:
            virtual = True
        elif part in _SIDES:
            side = part
        elif part in ARM_MODELS:
            device = part
        else:
            known = (_VIRTUAL, *_SIDES, *ARM_MODELS)
            near = did_you_mean(part, known) or f" (choose from: {', '.join(known)})"
            raise UsageError(f"unknown simulated port {name!r}{near}", code="robot.sim-port")
    return SimulatedPortName(virtual, side, device)


def device_port(name: str, device: str) -> str:
    """Return the port of a device on the simulated port ``name``, as "sim:so_leader"."""
    return name if any(part in ARM_MODELS for part in name.split(":")) else f"{name}:{device}"


class CellClock(RealClock):
    """Real time of a cell."""

    def __init__(self, cell: SimulatedCell) -> None:
        self.cell = cell


class VirtualClock:
    """Simulated time: a sleep steps the physics and takes no longer than that."""

    def __init__(self, cell: SimulatedCell) -> None:
        self.cell = cell
        self._now = 0.0

    def now(self) -> float:
        """Return the simulated seconds since the cell was made."""
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Step the physics until ``moment``."""
        with self.cell.lock:
            if moment > self._now:
                self.cell.advance(moment - self._now)
                self._now = moment


class CellScene:
    """Places the objects on the table and judges the task."""

    state_names: tuple[str, ...] = SCENE_STATE_NAMES

    def __init__(self, cell: SimulatedCell) -> None:
        self._cell = cell

    def state(self) -> Array:
        """Return the poses of cube and bin, float32 [6]."""
        with self._cell.lock:
            return self._cell.world.scene_state()

    def joint_positions(self) -> Array:
        """Return the follower's true joint positions in LeRobot's units, float32 [6]."""
        with self._cell.lock:
            return to_units(self._cell.world.angles())

    def reset(self, seed: int) -> None:
        """Carry the arm home, where motors that are on hold it, and place the objects."""
        with self._cell.lock:
            self._cell.world.reset(seed)
            self._cell.arm("sim").restart()

    def succeeded(self) -> bool:
        """Return whether the cube lies in the bin and the gripper is open."""
        with self._cell.lock:
            return self._cell.world.succeeded()


class SimulatedCell:
    """One table with its arms. Everything that touches the world holds ``lock``."""

    def __init__(self, *, virtual: bool, physics: bool = True) -> None:
        """Make a cell; without ``physics`` the follower's joints are kinematic too."""
        self.virtual = virtual
        self._physics = physics
        self.lock = threading.RLock()
        self.clock: Clock = VirtualClock(self) if virtual else CellClock(self)
        self.scene = CellScene(self)
        self._world: So101World | None = None
        self._arms: dict[tuple[str, str], SimulatedArm] = {}
        self._stepped_at = time.perf_counter()

    @property
    def world(self) -> So101World:
        """The world, made at its first use."""
        with self.lock:
            if self._world is None:
                try:
                    import mujoco  # noqa: F401
                except ModuleNotFoundError:
                    raise MissingExtra("mujoco", "so101") from None
                self._world = So101World()
            return self._world

    def arm(self, port: str) -> SimulatedArm:
        """Return the arm behind a port's name, made at its first use."""
        parsed = parse_port(port)
        with self.lock:
            key = (parsed.side, parsed.device)
            if key not in self._arms:
                model = ARM_MODELS[parsed.device]
                joints = self._joints(parsed)
                arm = SimulatedArm(joints, model.servos(), lock=self.lock, catch_up=self.catch_up)
                arm.person = model.wave if model.is_leader else None
                self._arms[key] = arm
            return self._arms[key]

    def _joints(self, port: SimulatedPortName) -> Joints:
        if self._physics and port.has_physics:
            return WorldJoints(self.world)
        return ARM_MODELS[port.device].joints()

    @property
    def follower(self) -> SimulatedArm:
        """The SO-101 at the table."""
        return self.arm("sim")

    @property
    def leader(self) -> SimulatedArm:
        """The SO-101 leader."""
        return self.arm("sim:so_leader")

    def open_port(self, name: str, baudrate: int) -> EmulatedPort:
        """Open a port to the bus of an arm."""
        return EmulatedPort(self.arm(name).bus, baudrate)

    def advance(self, seconds: float) -> None:
        """Let time pass for all arms and the objects."""
        with self.lock:
            for arm in self._arms.values():
                arm.step(seconds)

    def catch_up(self) -> None:
        """In real time: step to the present moment. Virtual time stands still."""
        if self.virtual:
            return
        with self.lock:
            now = time.perf_counter()
            elapsed = now - self._stepped_at
            if elapsed > 0:
                self._stepped_at = now
                self.advance(min(elapsed, _LONGEST_CATCH_UP_S))


_cells: dict[bool, SimulatedCell] = {}
_cells_lock = threading.Lock()


def cell_for(port: str) -> SimulatedCell:
    """Return the cell of a simulated port in this process: one in real time, one virtual."""
    virtual = parse_port(port).virtual
    with _cells_lock:
        if virtual not in _cells:
            _cells[virtual] = SimulatedCell(virtual=virtual)
        return _cells[virtual]


def scene_for(port: str) -> CellScene | None:
    """Return the scene of the arm at the table; other simulated arms have none."""
    return cell_for(port).scene if parse_port(port).has_physics else None


def forget_cells() -> None:
    """Let the next ``cell_for`` make new cells, as after a power cycle; tests begin with it."""
    with _cells_lock:
        _cells.clear()


def open_simulated_port(name: str, baudrate: int) -> EmulatedPort:
    """Open a port of the cell; the opener of ``robots/buses/ports``."""
    return cell_for(name).open_port(name, baudrate)
