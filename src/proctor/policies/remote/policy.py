"""The remote policy: sends every query of the engine to a policy server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proctor.errors import ConnectionLost, UsageError
from proctor.features import Array, FeatureKind, Interface
from proctor.policies.base import Batch, Policy, PolicySpec, Query
from proctor.policies.compatibility import check_offered
from proctor.policies.latency import check_latency
from proctor.policies.remote.address import Address
from proctor.policies.remote.config import RemoteConfig
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.policies.remote.names import (
    ProtocolNames,
    convert_gripper,
    convert_rotation,
    converted_size,
    find_rotated_key,
    names_for_other_servers,
    names_for_proctor_servers,
    rotation_note,
    split_state,
)
from proctor.policies.remote.server_pool import EpisodeConnection, ServerPool, served_policy_name
from proctor.protocols import groot, lerobot, openpi, vla_eval
from proctor.protocols.inference_messages import InferenceRequest, Protocol, ServerInfo
from proctor.system.platform.memory import keep_freed_memory
from proctor.system.redaction import redact_text
from proctor.system.warn_once import WarnOnce
from proctor.types import EpisodeSpec


@dataclass(frozen=True)
class _ProtocolClient:
    """Client side of a protocol: its names of inputs, and how to connect."""

    names: ProtocolNames | None
    """None: the benchmark's own names."""
    connect: Callable[[Address, ConnectionSettings], ServerConnection]


class RemotePolicy(Policy):
    """Policy that runs on servers; up to ``in_flight`` threads call its methods."""

    def __init__(self, config: RemoteConfig, interface: Interface) -> None:
        addresses = config.addresses
        renamed = [*config.inputs, *(config.rename_map or {})]
        check_offered(renamed, interface, "--policy.inputs and --rename_map")
        keep_freed_memory()
        protocol = _protocol_client(config, interface)
        once = WarnOnce()
        settings = ConnectionSettings(
            answer_s=config.timeout_s,
            api_key=config.api_key,
            warn=lambda line: once.warn(f"note: {addresses[0]}: {line}"),
        )
        self._config = config
        self._pool = ServerPool(
            addresses, lambda at: protocol.connect(at, settings), config.retry_s
        )
        servers = self._pool.handshake()
        self._server_info = _common_info(servers.infos, addresses)
        renames = config.rename_map or {}
        if self._server_info is not None:
            _check_rhythm(config, self._server_info)
            self._names = names_for_proctor_servers(self._server_info, interface, renames)
        else:
            self._names = names_for_other_servers(protocol.names, interface, config.inputs, renames)
        states = [k for k in self._names if interface.features[k].kind is FeatureKind.STATE]
        sizes = {key: interface.features[key].shape[0] for key in states}
        self._rotated = find_rotated_key(config, sizes)
        if self._rotated is not None:
            sizes[self._rotated] = converted_size(config, sizes[self._rotated])
        self._parts = {key: split_state(self._names[key], size) for key, size in sizes.items()}
        self._check_expected(servers.expected_inputs)
        self.spec = self._spec(addresses, servers.notes)

    def _check_expected(self, expected: set[str]) -> None:
        """Refuse to run if an input that the server requires is not sent."""
        cameras = {name for key, name in self._names.items() if key not in self._parts}
        sent = cameras | {name for parts in self._parts.values() for name, _ in parts}
        if expected - sent:
            raise UsageError(
                f"the server requires {', '.join(sorted(expected))}; sent are "
                f"{', '.join(sorted(sent)) or 'none'}: map the names with --rename_map",
                code="policy.missing-input",
            )

    def _spec(self, addresses: list[Address], server_notes: list[str]) -> PolicySpec:
        server_info = self._server_info
        notes = [f"asking {', '.join(map(str, addresses))} ({addresses[0].protocol.value})"]
        if server_info is None:
            notes.append("; ".join(f"{key} is sent as {n}" for key, n in self._names.items()))
        if self._rotated is not None:
            notes.append(rotation_note(self._config, self._rotated))
        name = "remote" if server_info is None else f"remote {server_info.policy}"
        return PolicySpec(
            name,
            tuple(self._names),
            n_obs_steps=1 if server_info is None else server_info.n_obs_steps,
            n_action_steps=None,
            language_conditioned=server_info is not None and server_info.language_conditioned,
            bit_exact=server_info is not None and server_info.bit_exact,
            in_flight=self._config.in_flight,
            notes=(*notes, *server_notes),
        )

    def new_episode(self, spec: EpisodeSpec) -> EpisodeConnection:
        """Return the episode's state; the first query opens its connection."""
        return EpisodeConnection(spec)

    def act(self, batch: Batch) -> list[Array]:
        """Send the queries one after the other; concurrent calls keep several in flight."""
        return [self._infer(query, row, batch) for row, query in enumerate(batch.queries)]

    def _infer(self, query: Query, row: int, batch: Batch) -> Array:
        to_proctor = self._server_info is not None
        observation = {}
        for key, name in self._names.items():
            values = batch.observations[key][row]
            values = values if to_proctor else values[-1]
            if key not in self._parts:
                observation[name] = values
                continue
            state = convert_rotation(values, self._config) if key == self._rotated else values
            observation |= {part: state[..., part_slice] for part, part_slice in self._parts[key]}
        prompt = query.spec.task.instruction
        request = InferenceRequest(observation, prompt)
        if to_proctor:
            request = InferenceRequest(observation, prompt, query.spec, query.step, history=True)
        try:
            actions = self._pool.infer(query.state, request)
        except ConnectionLost as lost:
            raise ConnectionLost(
                f"{lost}; no server answered for {self._config.retry_s:g} s (--policy.retry_s)"
            ) from None
        return convert_gripper(actions[: self._config.n_action_steps], self._config.gripper)

    def end_episode(self, state: EpisodeConnection) -> None:
        """Return the episode's connection to the pool."""
        self._pool.end(state)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def protocol(self) -> dict[str, Any]:
        """Return the identity of the policy: fingerprint, ``--policy.version``, or addresses."""
        config = self._config
        if self._server_info is not None and self._server_info.fingerprint:
            served = self._server_info.fingerprint
        else:
            served = config.version or ",".join(sorted(map(str, config.addresses)))
        rules: dict[str, Any] = {"served": served, "names": self._names}
        if len(self._parts) > 1:  # with one state the key is clear
            rules["rotated"] = self._rotated
        return rules


def _check_rhythm(config: RemoteConfig, server_info: ServerInfo) -> None:
    """Refuse a latency longer than a chunk, and another inference interval than the server's.

    The state that a server keeps of an episode may require a fixed number of steps per inference.
    """
    if server_info.n_action_steps is None:
        return
    executed = min(config.n_action_steps or server_info.n_action_steps, server_info.n_action_steps)
    latency = config.latency_steps or 0
    check_latency(latency, server_info.policy, executed)
    every = executed - latency
    if server_info.asked_every is not None and every != server_info.asked_every:
        raise UsageError(
            f"--policy.url={redact_text(config.url)}: {server_info.policy} is served for one "
            f"inference every {server_info.asked_every} steps (rtc_config), but this run has one "
            f"every {every}; serve it with this evaluation's --policy.n_action_steps, and its "
            "--eval.latency_steps as --policy.latency_steps",
            code="policy.wrong-rhythm",
        )


def _common_info(infos: list[ServerInfo | None], addresses: list[Address]) -> ServerInfo | None:
    """Return the policy info that all servers share; None for servers other than Proctor's."""
    if any(server_info != infos[0] for server_info in infos):
        names = ", ".join(map(served_policy_name, infos))
        raise UsageError(
            f"--policy.url={','.join(map(str, addresses))}: the servers have different policies "
            f"({names})",
            code="server.different-policies",
        )
    return infos[0]


def _protocol_client(config: RemoteConfig, interface: Interface) -> _ProtocolClient:
    """Return the client of the servers' protocol; this imports the protocol's libraries."""
    match config.addresses[0].protocol:
        case Protocol.OPENPI:
            from proctor.policies.remote.websocket import OpenpiConnection

            return _ProtocolClient(
                ProtocolNames(*openpi.CAMERAS, None, openpi.STATE), OpenpiConnection
            )
        case Protocol.VLA_EVAL:
            from proctor.policies.remote.websocket import VlaEvalConnection

            names = ProtocolNames(*vla_eval.CAMERAS, "images/{}", vla_eval.STATES[0])
            return _ProtocolClient(names, VlaEvalConnection)
        case Protocol.GROOT:
            from proctor.policies.remote.groot import GrootConnection

            names = ProtocolNames(*groot.CAMERAS, "video/{}", groot.STATE_NAME)
            return _ProtocolClient(names, GrootConnection)
        case Protocol.LEROBOT:
            from proctor.policies.remote.lerobot import make_connector

            return _ProtocolClient(None, make_connector(_lerobot_setup(config, interface)))


def _lerobot_setup(config: RemoteConfig, interface: Interface) -> lerobot.PolicySetup | None:
    """Return the checkpoint that LeRobot's server is to load; None without ``--policy.served``."""
    if config.served is None:
        return None
    names = names_for_other_servers(None, interface, config.inputs, config.rename_map or {})
    shapes = {name: interface.features[key].shape for key, name in names.items()}
    return lerobot.PolicySetup(
        config.served_type or "",
        config.served,
        lerobot.lerobot_features(shapes),
        config.n_action_steps or config.actions_per_chunk,
        config.served_device,
    )
