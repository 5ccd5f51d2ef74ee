"""The policy that the engine sees: every query is a request, many of them in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proctor.errors import ConnectionLost, UsageError
from proctor.features import Array, FeatureKind, Interface
from proctor.policies.base import Batch, Policy, PolicySpec, Query
from proctor.policies.latency import check_latency
from proctor.policies.remote.address import Address
from proctor.policies.remote.config import RemoteConfig
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.policies.remote.conventions import (
    convert_gripper,
    convert_rotation,
    converted_size,
    find_rotated_key,
    rotation_note,
)
from proctor.policies.remote.names import (
    ProtocolNames,
    names_for_other_servers,
    names_for_proctor_servers,
    split_state,
)
from proctor.policies.remote.server_pool import EpisodeConnection, ServerPool, served_policy_name
from proctor.protocols import groot, lerobot, openpi, vla_eval
from proctor.protocols.inference_messages import InferenceRequest, Protocol, ServerInfo
from proctor.system.memory import keep_freed_memory
from proctor.system.warn_once import WarnOnce
from proctor.types import EpisodeSpec


@dataclass(frozen=True)
class _Spoken:
    """How a protocol is spoken."""

    words: ProtocolNames | None
    """None: its names are the benchmark's own."""
    link: Callable[[Address, ConnectionSettings], ServerConnection]


class RemotePolicy(Policy):
    """Asks servers. Its methods are called by as many threads as requests may be in flight."""

    def __init__(self, config: RemoteConfig, interface: Interface) -> None:
        addresses = config.addresses
        keep_freed_memory()
        spoken = _spoken(config, interface)
        once = WarnOnce()
        settings = ConnectionSettings(
            answer_s=config.timeout_s,
            api_key=config.api_key,
            warn=lambda line: once.warn(f"note: {addresses[0]}: {line}"),
        )
        self._config = config
        self._pool = ServerPool(addresses, lambda at: spoken.link(at, settings), config.retry_s)
        met = self._pool.meet()
        self._about = _agreed(met.said, addresses)
        renames = config.rename_map or {}
        if self._about is not None:
            _check_rhythm(config, self._about)
            self._names = names_for_proctor_servers(self._about, interface, renames)
        else:
            self._names = names_for_other_servers(spoken.words, interface, config.inputs, renames)
        states = [k for k in self._names if interface.features[k].kind is FeatureKind.STATE]
        sizes = {key: interface.features[key].shape[0] for key in states}
        self._rotated = find_rotated_key(config, sizes)
        if self._rotated is not None:
            sizes[self._rotated] = converted_size(config, sizes[self._rotated])
        self._parts = {key: split_state(self._names[key], size) for key, size in sizes.items()}
        self._check_wanted(met.wants)
        self.spec = self._spec(addresses, met.notes)

    def _check_wanted(self, wants: set[str]) -> None:
        """Refuse to send a server what it does not look at, where it says what it does."""
        cameras = {name for key, name in self._names.items() if key not in self._parts}
        sent = cameras | {name for parts in self._parts.values() for name, _ in parts}
        if wants - sent:
            raise UsageError(
                f"the server looks at {', '.join(sorted(wants))}; sent are "
                f"{', '.join(sorted(sent)) or 'none'}: say what is what with --rename_map"
            )

    def _spec(self, addresses: list[Address], missing: list[str]) -> PolicySpec:
        about = self._about
        notes = [f"asking {', '.join(map(str, addresses))} ({addresses[0].protocol.value})"]
        if about is None:
            notes.append("; ".join(f"{key} is sent as {n}" for key, n in self._names.items()))
        if self._rotated is not None:
            notes.append(rotation_note(self._config, self._rotated))
        name = "remote" if about is None else f"remote {about.policy}"
        return PolicySpec(
            name,
            tuple(self._names),
            n_obs_steps=1 if about is None else about.n_obs_steps,
            n_action_steps=None,
            language_conditioned=about is not None and about.language_conditioned,
            bit_exact=about is not None and about.bit_exact,
            in_flight=self._config.in_flight,
            notes=(*notes, *missing),
        )

    def new_episode(self, spec: EpisodeSpec) -> EpisodeConnection:
        """Return a seat: a connection is found when the episode first asks."""
        return EpisodeConnection(spec)

    def act(self, batch: Batch) -> list[Array]:
        """Ask for each query, one after the other: several are in flight by several calls."""
        return [self._ask(query, row, batch) for row, query in enumerate(batch.queries)]

    def _ask(self, query: Query, row: int, batch: Batch) -> Array:
        ours = self._about is not None
        seen = {}
        for key, name in self._names.items():
            values = batch.observations[key][row]
            values = values if ours else values[-1]
            if key not in self._parts:
                seen[name] = values
                continue
            state = convert_rotation(values, self._config) if key == self._rotated else values
            seen |= {part: state[..., where] for part, where in self._parts[key]}
        prompt = query.spec.task.instruction
        ask = InferenceRequest(seen, prompt)
        if ours:
            ask = InferenceRequest(seen, prompt, query.spec, query.step, history=True)
        try:
            actions = self._pool.ask(query.state, ask)
        except ConnectionLost as lost:
            raise ConnectionLost(
                f"{lost}; nobody else answered for {self._config.retry_s:g} s (--policy.retry_s)"
            ) from None
        return convert_gripper(actions[: self._config.n_action_steps], self._config.gripper)

    def end_episode(self, state: EpisodeConnection) -> None:
        """Give the connection back."""
        self._pool.end(state)

    def close(self) -> None:
        """Hang up."""
        self._pool.close()

    def protocol(self) -> dict[str, Any]:
        """Return what is known of who acts: the server's own word, the user's, or its address."""
        config = self._config
        if self._about is not None and self._about.fingerprint:
            served = self._about.fingerprint
        else:
            served = config.version or ",".join(sorted(map(str, config.addresses)))
        told: dict[str, Any] = {"served": served, "names": self._names}
        if len(self._parts) > 1:  # else it is the only state
            told["rotated"] = self._rotated
        return told


def _check_rhythm(config: RemoteConfig, about: ServerInfo) -> None:
    """Refuse a latency that no chunk lasts for, and to ask at other times than a server expects.

    What it keeps of an episode may be made for a number of steps between two questions.
    """
    if about.n_action_steps is None:
        return
    played = min(config.n_action_steps or about.n_action_steps, about.n_action_steps)
    latency = config.latency_steps or 0
    check_latency(latency, about.policy, played)
    every = played - latency
    if about.asked_every is not None and every != about.asked_every:
        raise UsageError(
            f"--policy.url={config.url}: {about.policy} is served to be asked every "
            f"{about.asked_every} steps (rtc_config), and would be every {every}; serve it with "
            "this evaluation's --policy.n_action_steps, and its --eval.latency_steps as "
            "--policy.latency_steps"
        )


def _agreed(said: list[ServerInfo | None], addresses: list[Address]) -> ServerInfo | None:
    """Return what all servers say of their policy; None where they are somebody else's.

    Raises:
        UsageError: they do not serve the same.
    """
    if any(about != said[0] for about in said):
        names = ", ".join(map(served_policy_name, said))
        raise UsageError(
            f"--policy.url={','.join(map(str, addresses))}: not one policy everywhere ({names})"
        )
    return said[0]


def _spoken(config: RemoteConfig, interface: Interface) -> _Spoken:
    """Return how the servers' protocol is spoken; its libraries are imported now.

    Raises:
        MissingExtra: they are not installed.
    """
    match config.addresses[0].protocol:
        case Protocol.OPENPI:
            from proctor.policies.remote.openpi import OpenpiConnection

            return _Spoken(ProtocolNames(*openpi.CAMERAS, None, openpi.STATE), OpenpiConnection)
        case Protocol.VLA_EVAL:
            from proctor.policies.remote.vla_eval import VlaEvalConnection

            words = ProtocolNames(*vla_eval.CAMERAS, "images/{}", vla_eval.STATES[0])
            return _Spoken(words, VlaEvalConnection)
        case Protocol.GROOT:
            from proctor.policies.remote.groot import GrootConnection

            words = ProtocolNames(*groot.CAMERAS, "video/{}", groot.STATE_NAME)
            return _Spoken(words, GrootConnection)
        case Protocol.LEROBOT:
            from proctor.policies.remote.lerobot import make_connector

            return _Spoken(None, make_connector(_lerobot_setup(config, interface)))


def _lerobot_setup(config: RemoteConfig, interface: Interface) -> lerobot.PolicySetup | None:
    """Return what LeRobot's server is told to play; None where no flag says it."""
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
