"""Config of ``proctor serve``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.base import MOST_SEED, STRICT_BATCH, Config, plugin_section
from proctor.errors import UsageError
from proctor.fingerprint import API_KEY_VARIABLE, secret_metadata
from proctor.policies.base import PolicyConfig
from proctor.policies.remote.address import check_api_key
from proctor.protocols.inference_messages import Protocol
from proctor.serving.server import PORTS, Endpoint
from proctor.settings import setting
from proctor.system.limits import ServerLimits
from proctor.system.loopback import LOOPBACK

_NAMES = {protocol.value: protocol for protocol in Protocol}


@dataclass
class ServeConfig(Config):
    """Config of a policy server: policy, protocols, address and limits."""

    help_group: ClassVar[str] = "Limits"
    help_groups: ClassVar[Mapping[str, str]] = {
        "Protocols and address": "protocol port host state_parts",
        "Security": "api_key api_key_file tls_cert tls_key trust",
        "Inference": "seed strict",
    }

    foreign: ClassVar[tuple[str, ...]] = ("environments", "policies", "family_fields")
    first: ClassVar[str] = (
        "policy.path policy.type policy.device rename_map protocol port host api_key "
        "api_key_file tls_cert tls_key trust max_batch max_connections max_message_mb idle_s "
        "env.type env.task"
    )

    policy: PolicyConfig = plugin_section("policies", type_of_path="pretrained")
    env: BenchmarkConfig | None = plugin_section("benchmarks", optional=True)
    protocol: list[str] = setting(
        ["openpi"],
        f"network protocols to serve, comma-separated: {', '.join(_NAMES)}",
        choices=tuple(_NAMES),
    )
    port: list[int] | None = setting(
        None,
        "TCP port of each protocol; 0: any free port (default: "
        f"{', '.join((f'{name.value} {port}' for name, port in PORTS.items()))})",
        least=0,
        most=65535,
    )
    state_parts: list[str] = setting(
        [],
        "groot: parts of the state vector in the policy's order, as arm:7,gripper:1 "
        "(NAME:SIZE) (default: the whole state)",
    )
    host: str = setting(
        "127.0.0.1", "IP address to serve on; clients on other machines need the API key"
    )
    api_key: str | None = setting(
        None,
        "API key that clients must send; other users can read command lines, so prefer "
        f"${API_KEY_VARIABLE} or api_key_file (default: none on 127.0.0.1, else a new key)",
        secret_metadata(API_KEY_VARIABLE),
    )
    api_key_file: Path | None = setting(None, "file that contains the API key (default: no file)")
    tls_cert: Path | None = setting(None, "TLS certificate file (default: no encryption)")
    tls_key: Path | None = setting(None, "private key file of --tls_cert (default: no encryption)")
    trust: bool = setting(
        False,
        "trust the network: serve other machines without TLS, and accept pickles of LeRobot "
        "clients",
    )
    max_batch: int = setting(64, "maximum requests per inference batch", least=1, most=4096)
    max_connections: int = setting(
        256, "maximum number of client connections", least=1, most=10_000
    )
    max_message_mb: int = setting(16, "maximum size of a message in MiB", least=1, most=1024)
    idle_s: float = setting(600.0, "idle timeout of a client in seconds", least=0.1, most=1e6)
    seed: int = setting(
        1000,
        "seed of the policy's sampling, for clients that send no episode seed",
        least=0,
        most=MOST_SEED,
    )
    strict: bool = setting(
        True,
        "on an accelerator, pad every batch to one size: results are bit-identical under any load",
    )

    @property
    def played_policy(self) -> PolicyConfig:
        """The policy config, with the padding of --strict."""
        if self.strict and self.policy.pad_to is None:
            return replace(self.policy, pad_to=STRICT_BATCH)
        return self.policy

    @property
    def endpoints(self) -> list[Endpoint]:
        """The protocols with their ports."""
        protocols = [_NAMES[name] for name in self.protocol]
        ports = self.port or [PORTS[protocol] for protocol in protocols]
        return [Endpoint(p, port) for p, port in zip(protocols, ports, strict=True)]

    def limits(self, api_key: str | None) -> ServerLimits:
        """Return the limits of a server whose clients send ``api_key``."""
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = (self.tls_cert, self.tls_key)
        return ServerLimits(
            host=self.host,
            api_key=api_key,
            tls=tls,
            max_bytes=self.max_message_mb * 2**20,
            max_clients=self.max_connections,
            idle_s=self.idle_s,
        )

    @property
    def is_here(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        if not self.protocol or len(set(self.protocol)) < len(self.protocol):
            raise UsageError(
                f"--protocol={','.join(self.protocol)} is empty or names a protocol twice",
                code="flag.invalid-value",
            )
        if self.port is not None and len(self.port) != len(self.protocol):
            raise UsageError(
                f"--port: {len(self.protocol)} protocols take as many ports, got {self.port}",
                code="flag.conflict",
            )
        if self.state_parts and "groot" not in self.protocol:
            raise UsageError("--state_parts is for --protocol=groot", code="flag.not-applicable")
        self._validate_reach()

    def _validate_reach(self) -> None:
        """Refuse to serve other machines without encryption, unless --trust is given."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls_cert and --tls_key come together", code="flag.missing")
        check_api_key("--api_key", self.api_key)
        if self.is_here or self.trust:
            return
        plain = [name for name in self.protocol if name in ("groot", "lerobot")]
        if plain:
            raise UsageError(
                f"--protocol={plain[0]} is not encrypted: serve it on this machine only, or say "
                "that everyone in the network may use it with --trust",
                code="serve.not-encrypted",
            )
        if self.tls_cert is None:
            raise UsageError(
                f"--host={self.host} is public: add --tls_cert and --tls_key, or say that "
                "the network is trusted with --trust",
                code="serve.not-encrypted",
            )
