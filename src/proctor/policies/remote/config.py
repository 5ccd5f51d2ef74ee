"""Plug-in and flags of remote policies: servers, protocol, names of inputs, conventions of numbers.

No network library is imported before a policy is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from proctor.errors import UsageError
from proctor.features import STATE
from proctor.fingerprint import API_KEY_VARIABLE, PRESENTATION, secret_metadata
from proctor.policies.base import PolicyConfig, flag
from proctor.policies.remote.address import Address, check_api_key, parse_addresses
from proctor.protocols.inference_messages import Protocol


class Rotation(Enum):
    """Representation of the state's rotation on the wire; the benchmark has axis-angle."""

    AXIS_ANGLE = "axis_angle"
    QUATERNION_XYZW = "quaternion_xyzw"
    QUATERNION_WXYZ = "quaternion_wxyz"
    EULER = "euler"


class Gripper(Enum):
    """The server's convention for the last action dimension; the benchmark's is -1 to 1."""

    AS_IS = "as_is"
    NEGATED = "negated"
    UNIT = "unit"
    UNIT_NEGATED = "unit_negated"


@dataclass
class RemoteConfig(PolicyConfig):
    """Flags of a remote policy."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Server": "url protocol version served served_type served_device actions_per_chunk",
        "Observations and actions": "rename_map inputs rotation rotation_key rotation_at gripper "
        "n_action_steps",
        "Connection": "trust timeout_s retry_s in_flight api_key api_key_file",
    }

    type: str = "remote"
    url: str = flag(
        "",
        "policy server: ws://HOST:PORT (openpi), tcp:// (GR00T), vla:// (vla-eval) "
        "or grpc:// (LeRobot); several servers: comma-separated",
        "required",
        PRESENTATION,
    )
    protocol: Protocol | None = flag(None, "protocol of the server", "that of the URL's scheme")
    rename_map: dict[str, str] | None = flag(
        None,
        "rename observations for the server, as {benchmark's name: server's name}",
        "no renaming",
    )
    inputs: list[str] = flag([], "observation keys to send", "all cameras and the state")
    rotation: Rotation = flag(
        Rotation.AXIS_ANGLE,
        "rotation format of the state that the server expects; the benchmark's is axis_angle",
    )
    rotation_key: str | None = flag(
        None, "observation key of the state that contains the rotation", STATE
    )
    rotation_at: int = flag(3, "index of the rotation's first number in the state")
    gripper: Gripper = flag(
        Gripper.AS_IS,
        "gripper convention of the server's actions: the benchmark's -1 to 1 "
        "(as_is), its negative, 0 to 1 (unit), or 1 to 0",
    )
    n_action_steps: int | None = flag(None, "actions executed per inference", "the whole chunk")
    version: str | None = flag(
        None,
        "version of the served weights; a run resumes from another URL only with the same version",
        "not stated",
    )
    served: str | None = flag(
        None,
        "for LeRobot's server: checkpoint to load, a folder or a Hub id",
        "required for LeRobot's server",
    )
    served_type: str | None = flag(
        None,
        "for LeRobot's server: policy type of the checkpoint, such as act",
        "required for LeRobot's server",
    )
    served_device: str = flag(
        "cpu", "for LeRobot's server: inference device, cpu, cuda or mps", marks=PRESENTATION
    )
    actions_per_chunk: int = flag(50, "for LeRobot's server: maximum actions per chunk")
    trust: bool = flag(
        False,
        "accept pickles from a LeRobot server on another machine (read as data only)",
        marks=PRESENTATION,
    )
    timeout_s: float = flag(120.0, "timeout of an inference request in seconds", marks=PRESENTATION)
    retry_s: float = flag(30.0, "seconds to retry after a lost connection", marks=PRESENTATION)
    in_flight: int = flag(64, "maximum concurrent requests", marks=PRESENTATION)
    api_key: str | None = flag(
        None,
        "API key of the server; other users can read command lines, so prefer "
        f"${API_KEY_VARIABLE} or api_key_file",
        f"${API_KEY_VARIABLE}",
        PRESENTATION | secret_metadata(API_KEY_VARIABLE),
    )
    api_key_file: Path | None = flag(
        None, "file with the server's API key", "no file", PRESENTATION
    )

    @property
    def addresses(self) -> list[Address]:
        """The servers' addresses."""
        return parse_addresses(self.url, self.protocol)


def check_flags(config: RemoteConfig) -> None:
    """Refuse invalid flags, without connecting to a server."""
    for address in config.addresses:
        if address.protocol is Protocol.LEROBOT and not (address.is_local or config.trust):
            raise UsageError(
                f"--policy.url={address}: LeRobot's server on another machine sends pickles; they "
                "are read as data only, but add --policy.trust=true to accept them",
                code="server.untrusted",
            )
        if "api_key=" in urlsplit(address.url).query:
            raise UsageError(
                "--policy.url contains an api_key, and URLs are written to the run folder: use "
                f"--policy.api_key_file or the variable {API_KEY_VARIABLE}",
                code="flag.holds-secret",
            )
    if (config.served is None) != (config.served_type is None):
        raise UsageError(
            "--policy.served and --policy.served_type must be set together", code="flag.conflict"
        )
    if config.actions_per_chunk < 1:
        raise UsageError(
            f"--policy.actions_per_chunk must be at least 1, got {config.actions_per_chunk}",
            code="flag.out-of-range",
        )
    for name, least, most in (("timeout_s", 0.01, 1e5), ("retry_s", 0.0, 1e5)):
        value = getattr(config, name)
        if not least <= value <= most:
            raise UsageError(
                f"--policy.{name} must be {least:g} to {most:g}, got {value:g}",
                code="flag.out-of-range",
            )
    if not 1 <= config.in_flight <= 1024:
        raise UsageError(
            f"--policy.in_flight must be 1 to 1024, got {config.in_flight}",
            code="flag.out-of-range",
        )
    if config.n_action_steps is not None and config.n_action_steps < 1:
        raise UsageError(
            f"--policy.n_action_steps must be at least 1, got {config.n_action_steps}",
            code="flag.out-of-range",
        )
    if config.rotation_at < 0:
        raise UsageError(
            f"--policy.rotation_at must be at least 0, got {config.rotation_at}",
            code="flag.out-of-range",
        )
    check_api_key("--policy.api_key", config.api_key)
