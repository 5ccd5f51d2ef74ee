"""Two SO arms as one robot or one leader: channels with the prefixes ``left_`` and ``right_``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from proctor.errors import UsageError
from proctor.robots.arms.serial_arm import SerialArm, is_simulated
from proctor.robots.arms.so import (
    SoFollower,
    SoFollowerConfig,
    SoFollowerFields,
    SoLeader,
    SoLeaderConfig,
    SoLeaderFields,
)
from proctor.robots.base import (
    Action,
    Camera,
    Device,
    DeviceConfig,
    DeviceHealth,
    GuardTarget,
    ImageShape,
    Operator,
    Robot,
    RobotConfig,
    RobotObservation,
    RobotPlugin,
    Teleoperator,
    TeleoperatorConfig,
    TeleoperatorPlugin,
    Unit,
)
from proctor.robots.cameras.configs import camera_configs, make_cameras
from proctor.settings import setting

ArmT = TypeVar("ArmT", bound=SerialArm)
ValueT = TypeVar("ValueT")
SIDES = ("left", "right")


class _TwoArms(Device, Generic[ArmT]):
    """Two arms by side; both are always tried, and both are read at the same time."""

    def __init__(self, arms: Mapping[str, ArmT]) -> None:
        self.arms = dict(arms)
        self.clock = self.arms["left"].clock
        self._threads = ThreadPoolExecutor(len(SIDES), thread_name_prefix=self.name)

    @property
    def is_connected(self) -> bool:
        """Whether both arms are connected."""
        return all(arm.is_connected for arm in self.arms.values())

    @property
    def is_calibrated(self) -> bool:
        """Whether the motors of both arms hold their calibration."""
        return all(arm.is_calibrated for arm in self.arms.values())

    def calibration_values(self) -> Mapping[str, Mapping[str, int]]:
        """Return the calibration of both arms' motors."""
        return self._prefixed({side: arm.calibration_values() for side, arm in self.arms.items()})

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """The channels of the left arm, then those of the right one."""
        return self._prefixed({side: arm.action_features for side, arm in self.arms.items()})

    def connect(self, operator: Operator | None = None) -> None:
        """Connect both arms; if the second one fails, the first one is switched off."""
        with ExitStack() as undo:
            for arm in self.arms.values():
                arm.connect(operator)
                undo.callback(arm.disconnect)
            self._connect_more()
            undo.pop_all()

    def _connect_more(self) -> None:
        """Open what belongs to neither arm."""

    def disconnect(self) -> None:
        """Disconnect both arms, the second one also after a failure of the first."""
        with ExitStack() as everything:
            for arm in self.arms.values():
                everything.callback(arm.disconnect)

    def calibrate(self, operator: Operator) -> None:
        """Calibrate the left arm, then the right one."""
        for arm in self.arms.values():
            arm.calibrate(operator)

    def set_up_motors(self, operator: Operator) -> None:
        """Set up the motors of the left arm, then those of the right one."""
        for side, arm in self.arms.items():
            operator.tell(f"The {side} arm:")
            arm.set_up_motors(operator)

    def guard_targets(self) -> Sequence[GuardTarget]:
        """Return the motors of both arms."""
        return [target for arm in self.arms.values() for target in arm.guard_targets()]

    def health(self) -> DeviceHealth:
        """Return the counts of both arms together."""
        found = {side: arm.health() for side, arm in self.arms.items()}
        return DeviceHealth(
            requests=sum(health.requests for health in found.values()),
            retries=sum(health.retries for health in found.values()),
            lost_replies=self._prefixed({side: h.lost_replies for side, h in found.items()}),
            alerts=self._prefixed({side: h.alerts for side, h in found.items()}),
            clipped=self._prefixed({side: h.clipped for side, h in found.items()}),
        )

    def _both(self, use: Callable[[str, ArmT], Mapping[str, ValueT]]) -> dict[str, ValueT]:
        """Call ``use`` for both arms at the same time; return the prefixed results."""
        futures = {side: self._threads.submit(use, side, arm) for side, arm in self.arms.items()}
        failures = [f.exception() for f in futures.values()]  # waits for both
        for failure in failures:
            if failure is not None:
                raise failure
        return self._prefixed({side: future.result() for side, future in futures.items()})

    def _prefixed(self, by_side: Mapping[str, Mapping[str, ValueT]]) -> dict[str, ValueT]:
        return {
            f"{side}_{name}": value
            for side, values in by_side.items()
            for name, value in values.items()
        }

    def _of(self, side: str, action: Action) -> Action:
        """Return the part of an action for one arm, without the prefix."""
        prefix = f"{side}_"
        return {
            name.removeprefix(prefix): value
            for name, value in action.items()
            if name.startswith(prefix)
        }


def _single(config: DeviceConfig, side: str, fields: Any) -> dict[str, Any]:
    """Return the fields of one arm's config; id and simulated port are the pair's with the side."""
    return {
        **asdict(fields),
        "port": f"{fields.port}:{side}" if is_simulated(fields.port) else fields.port,
        "id": f"{config.id}_{side}" if config.id else None,
        "calibration_dir": config.calibration_dir,
    }


@dataclass(kw_only=True)
class BiSoFollowerConfig(RobotConfig):
    """Flags of two SO followers, with LeRobot's names and defaults."""

    left_arm_config: SoFollowerFields
    right_arm_config: SoFollowerFields
    cameras: dict[str, Any] = setting(
        {}, "cameras that belong to neither arm, by name (default: no cameras)"
    )


class BiSoFollower(_TwoArms[SoFollower], Robot):
    """Two SO followers."""

    name = "bi_so_follower"

    def __init__(self, config: BiSoFollowerConfig) -> None:
        sides = {"left": config.left_arm_config, "right": config.right_arm_config}
        super().__init__(
            {
                side: SoFollower(SoFollowerConfig(**_single(config, side, fields)))
                for side, fields in sides.items()
            }
        )
        self._own_cameras = make_cameras(camera_configs(config.cameras), self.clock)
        of_arms = self._prefixed({side: arm.cameras for side, arm in self.arms.items()})
        if clash := set(of_arms) & set(self._own_cameras):
            raise UsageError(
                f"--robot.cameras: {', '.join(sorted(clash))} is also a camera of an arm",
                code="camera.duplicate-name",
            )
        self.cameras: Mapping[str, Camera] = {**of_arms, **self._own_cameras}

    @property
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        """Positions of both arms, then all cameras."""
        shapes = {name: camera.shape for name, camera in self.cameras.items()}
        return {**self.action_features, **shapes}

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        """Ends of the calibrated range of each joint."""
        return self._prefixed({side: arm.limits for side, arm in self.arms.items()})

    def _connect_more(self) -> None:
        with ExitStack() as undo:
            for camera in self._own_cameras.values():
                camera.connect()
                undo.callback(camera.disconnect)
            undo.pop_all()

    def get_observation(self) -> RobotObservation:
        """Read both arms at the same time, then the other cameras."""
        observation: RobotObservation = self._both(lambda _, arm: arm.get_observation())
        for name, camera in self._own_cameras.items():
            observation[name] = camera.latest().image
        return observation

    def send_action(self, action: Action) -> Action:
        """Send the targets of both arms at the same time."""
        return self._both(lambda side, arm: arm.send_action(self._of(side, action)))

    def stop(self) -> None:
        """Switch every motor of both arms off."""
        with ExitStack() as everything:
            for arm in self.arms.values():
                everything.callback(arm.stop)

    def disconnect(self) -> None:
        """Disconnect both arms and all cameras; a failure of one skips no other."""
        with ExitStack() as everything:
            for camera in self._own_cameras.values():
                everything.callback(camera.disconnect)
            everything.callback(super().disconnect)


@dataclass(kw_only=True)
class BiSoLeaderConfig(TeleoperatorConfig):
    """Flags of two SO leaders, with LeRobot's names and defaults."""

    left_arm_config: SoLeaderFields
    right_arm_config: SoLeaderFields


class BiSoLeader(_TwoArms[SoLeader], Teleoperator):
    """Two SO leaders."""

    name = "bi_so_leader"

    def __init__(self, config: BiSoLeaderConfig) -> None:
        sides = {"left": config.left_arm_config, "right": config.right_arm_config}
        super().__init__(
            {
                side: SoLeader(SoLeaderConfig(**_single(config, side, fields)))
                for side, fields in sides.items()
            }
        )

    @property
    def feedback_features(self) -> Mapping[str, Unit]:  # type: ignore[override]
        """The channels of the action."""
        return self.action_features

    @property
    def is_actuated(self) -> bool:
        """True: both arms can be moved to a pose."""
        return True

    def get_action(self) -> Action:
        """Read both arms at the same time."""
        return self._both(lambda _, arm: arm.get_action())

    def set_torque(self, *, on: bool) -> None:
        """Hold both arms where they are, or let a person move them."""
        for arm in self.arms.values():
            arm.set_torque(on=on)

    def send_feedback(self, feedback: Action) -> None:
        """Send targets to both arms."""
        for side, arm in self.arms.items():
            arm.send_feedback(self._of(side, feedback))


FOLLOWER = RobotPlugin(BiSoFollowerConfig, BiSoFollower, "two SO-100 or SO-101 follower arms")
LEADER = TeleoperatorPlugin(BiSoLeaderConfig, BiSoLeader, "two SO-100 or SO-101 leader arms")
