"""Writes a small stand-in for LeRobot and plug-in packages of third parties into a folder.

The stand-in has LeRobot's registries, factories and base classes, as far as plug-ins use them.
"""

from __future__ import annotations

from pathlib import Path

REGISTRY = """
from dataclasses import dataclass
from pathlib import Path

class Registry:
    @classmethod
    def register_subclass(cls, name):
        def register(sub):
            cls.choices[name] = sub
            return sub
        return register

    @classmethod
    def get_known_choices(cls):
        return cls.choices

@dataclass(kw_only=True)
class RobotConfig(Registry):
    choices = {}
    id: str | None = None
    calibration_dir: Path | None = None

@dataclass(kw_only=True)
class TeleoperatorConfig(Registry):
    choices = {}
    id: str | None = None
    calibration_dir: Path | None = None

@dataclass(kw_only=True)
class CameraConfig(Registry):
    choices = {}
    fps: int | None = None
    width: int | None = None
    height: int | None = None
"""
FACTORY = """
import sys

def make(config):
    name = type(config).__name__.removesuffix("Config")
    return getattr(sys.modules[type(config).__module__], name)(config)

make_robot_from_config = make_teleoperator_from_config = make

def make_cameras_from_configs(configs):
    return {name: make(config) for name, config in configs.items()}
"""
ROBOT = """
import enum
import numpy as np
from dataclasses import dataclass, field
from lerobot.cameras import CameraConfig
from lerobot.robots import RobotConfig

class Mode(enum.Enum):
    SOFT = "soft"
    STIFF = "stiff"

@dataclass
class Gains:
    p: float = 1.0

@RobotConfig.register_subclass("acme_arm")
@dataclass(kw_only=True)
class AcmeArmConfig(RobotConfig):
    port: str
    speed: int = 5
    mode: Mode = Mode.SOFT
    gains: Gains = field(default_factory=Gains)
    cameras: dict[str, CameraConfig] = field(default_factory=dict)

    def __post_init__(self):
        if self.speed > 9:
            raise ValueError("speed is at most 9")

class Bus:
    torque = True
    def disable_torque(self):
        self.torque = False

class AcmeArm:
    name = "acme_arm"
    is_calibrated = True

    def __init__(self, config):
        self.config = config
        self.bus = Bus()
        self.is_connected = False
        self.sent = []
        self.fails = None
        self.calibrate_asked = None
        self.cameras = {}

    @property
    def observation_features(self):
        return {"joint.pos": float, "front": (4, 6, 3)}

    @property
    def action_features(self):
        return {"joint.pos": float}

    def connect(self, calibrate=True):
        self.is_connected, self.calibrate_asked = True, calibrate

    def calibrate(self):
        self.is_calibrated = True

    def get_observation(self):
        if self.fails:
            raise self.fails
        return {"joint.pos": np.float32(1.5), "front": np.zeros((4, 6, 3), np.uint8)}

    def send_action(self, action):
        self.sent.append(action)
        return {"joint.pos": np.float64(min(action["joint.pos"], 10))}

    def disconnect(self):
        self.is_connected = False
"""
TELEOPERATOR = """
from dataclasses import dataclass
from lerobot.teleoperators import TeleoperatorConfig

@TeleoperatorConfig.register_subclass("acme_pad")
@dataclass(kw_only=True)
class AcmePadConfig(TeleoperatorConfig):
    gain: float = 2.0

class AcmePad:
    name = "acme_pad"
    is_calibrated = True
    is_connected = False
    feedback_features = {"joint.pos": float}
    torque = None

    def __init__(self, config):
        self.config = config
        self.feedback = None

    @property
    def action_features(self):
        return {"dtype": "float32", "shape": (1,), "names": {"joint.pos": 0}}

    def connect(self):
        self.is_connected = True

    def get_action(self):
        return {"joint.pos": self.config.gain}

    def send_feedback(self, feedback):
        self.feedback = feedback

    def enable_torque(self):
        self.torque = True

    def disable_torque(self):
        self.torque = False

    def disconnect(self):
        self.is_connected = False
"""
CAMERA = """
import numpy as np
from dataclasses import dataclass
from lerobot.cameras import CameraConfig

@CameraConfig.register_subclass("acme_eye")
@dataclass(kw_only=True)
class AcmeEyeConfig(CameraConfig):
    lens: str = "wide"

class AcmeEye:
    def __init__(self, config):
        self.config = config
        self.width, self.height = config.width, config.height
        self.is_connected = False
        self.image = np.zeros((config.height, config.width, 3), np.uint8)
        self.late = False

    def connect(self):
        self.is_connected = True

    def read_latest(self, max_age_ms=500):
        if self.late:
            raise TimeoutError("latest frame is too old")
        return self.image

    def disconnect(self):
        self.is_connected = False
"""


def write_lerobot(folder: Path) -> None:
    """Write the stand-in for LeRobot."""
    package = folder / "lerobot"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "registry.py").write_text(REGISTRY)
    for kind in ("robots", "teleoperators", "cameras"):
        (package / kind).mkdir()
        (package / kind / "__init__.py").write_text("from lerobot.registry import *\n")
        (package / kind / "utils.py").write_text(FACTORY)


def write_plugin(folder: Path, distribution: str, code: str) -> None:
    """Write an installed distribution whose package is ``code``."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
