"""Flags of a policy that somebody serves: where, what is spoken, by which names and conventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from proctor.errors import UsageError
from proctor.fingerprint import API_KEY_VARIABLE, PRESENTATION, secret_metadata
from proctor.policies.base import PolicyConfig
from proctor.policies.remote.address import Address, is_printable_ascii, parse_addresses
from proctor.protocols.inference_messages import Protocol


class Rotation(Enum):
    """How the rotation in the robot's state is sent, where the benchmark has axis-angle."""

    AXIS_ANGLE = "axis_angle"
    QUATERNION_XYZW = "quaternion_xyzw"
    QUATERNION_WXYZ = "quaternion_wxyz"
    EULER = "euler"


class Gripper(Enum):
    """What the last number of an action means to the server, where ours is -1 to 1."""

    AS_IS = "as_is"
    NEGATED = "negated"
    UNIT = "unit"
    UNIT_NEGATED = "unit_negated"


@dataclass
class RemoteConfig(PolicyConfig):
    """Flags of a policy that somebody serves."""

    type: str = "remote"
    url: str = field(
        default="",
        metadata={
            "help": "where it is served: ws://HOST:PORT (openpi), tcp:// (GR00T), vla:// "
            "(vla-eval), grpc:// (LeRobot); several of the same policy, comma-separated"
        }
        | PRESENTATION,
    )
    protocol: Protocol | None = field(
        default=None, metadata={"help": "what is spoken there, where the URL does not tell"}
    )
    rename_map: dict[str, str] | None = field(
        default=None, metadata={"help": "benchmark's names to the server's, as {ours: theirs}"}
    )
    inputs: list[str] = field(
        default_factory=list,
        metadata={"help": "observation keys that are sent (default: all cameras and the state)"},
    )
    rotation: Rotation = field(
        default=Rotation.AXIS_ANGLE,
        metadata={"help": "how the axis-angle in the state (from rotation_at on) is sent"},
    )
    rotation_key: str | None = field(
        default=None,
        metadata={
            "help": "the state that holds the rotation, where several are sent "
            "(default: observation.state)"
        },
    )
    rotation_at: int = field(default=3, metadata={"help": "where in the state the rotation begins"})
    gripper: Gripper = field(
        default=Gripper.AS_IS,
        metadata={
            "help": "what the action's last number is there: as_is, negated, unit (0 to 1 for our "
            "-1 to 1) or unit_negated"
        },
    )
    n_action_steps: int | None = field(
        default=None, metadata={"help": "actions of a chunk that are played (default: all)"}
    )
    version: str | None = field(
        default=None,
        metadata={
            "help": "which weights are served: a run can be resumed from another URL that says "
            "the same"
        },
    )
    served: str | None = field(
        default=None, metadata={"help": "for LeRobot's server: the checkpoint that it is to load"}
    )
    served_type: str | None = field(
        default=None, metadata={"help": "for LeRobot's server: that checkpoint's type, such as act"}
    )
    served_device: str = field(
        default="cpu", metadata={"help": "for LeRobot's server: where it computes"} | PRESENTATION
    )
    actions_per_chunk: int = field(
        default=50, metadata={"help": "for LeRobot's server: how long its chunks are at most"}
    )
    trust: bool = field(
        default=False,
        metadata={"help": "for LeRobot's server on another machine: it sends pickles"}
        | PRESENTATION,
    )
    timeout_s: float = field(
        default=120.0, metadata={"help": "how long an answer may take"} | PRESENTATION
    )
    retry_s: float = field(
        default=30.0,
        metadata={"help": "how long a lost request is asked again, here or elsewhere"}
        | PRESENTATION,
    )
    in_flight: int = field(
        default=64, metadata={"help": "most requests at the same time"} | PRESENTATION
    )
    api_key: str | None = field(
        default=None,
        metadata={
            "help": "key that the server asks for, kept in no file of the run; on the command line "
            f"other users see it, so rather set {API_KEY_VARIABLE} or api_key_file"
        }
        | PRESENTATION
        | secret_metadata(API_KEY_VARIABLE),
    )
    api_key_file: Path | None = field(
        default=None,
        metadata={"help": "file that holds the key that the server asks for"} | PRESENTATION,
    )

    @property
    def addresses(self) -> list[Address]:
        """Where it is served."""
        return parse_addresses(self.url, self.protocol)


def check_flags(config: RemoteConfig) -> None:
    """Refuse flags that make no sense; nobody is asked anything.

    Raises:
        UsageError: naming the flag.
    """
    for address in config.addresses:
        if address.protocol is Protocol.LEROBOT and not (address.is_local or config.trust):
            raise UsageError(
                f"--policy.url={address}: LeRobot's server sends pickles, from another machine; "
                "they are read as data only, but add --policy.trust=true to talk to it"
            )
        if "api_key=" in urlsplit(address.url).query:
            raise UsageError(
                "--policy.url holds an api_key, and URLs are written down: use "
                f"--policy.api_key_file or the variable {API_KEY_VARIABLE}"
            )
    if (config.served is None) != (config.served_type is None):
        raise UsageError("--policy.served and --policy.served_type come together")
    if config.actions_per_chunk < 1:
        raise UsageError(
            f"--policy.actions_per_chunk must be at least 1, got {config.actions_per_chunk}"
        )
    for name, least, most in (("timeout_s", 0.01, 1e5), ("retry_s", 0.0, 1e5)):
        value = getattr(config, name)
        if not least <= value <= most:
            raise UsageError(f"--policy.{name} must be {least:g} to {most:g}, got {value:g}")
    if not 1 <= config.in_flight <= 1024:
        raise UsageError(f"--policy.in_flight must be 1 to 1024, got {config.in_flight}")
    if config.n_action_steps is not None and config.n_action_steps < 1:
        raise UsageError(f"--policy.n_action_steps must be at least 1, got {config.n_action_steps}")
    if config.rotation_at < 0:
        raise UsageError(f"--policy.rotation_at must be at least 0, got {config.rotation_at}")
    if config.api_key is not None and not is_printable_ascii(config.api_key):
        raise UsageError("--policy.api_key holds characters that no header may")
