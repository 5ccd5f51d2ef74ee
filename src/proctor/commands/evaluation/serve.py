"""``proctor serve``: serve a policy to clients of several protocols."""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from proctor.commands.shared.arguments import parse_flags
from proctor.errors import UsageError, strip_control_codes

if TYPE_CHECKING:
    from proctor.config.serving import ServeConfig
    from proctor.features import Interface
    from proctor.policies.base import Policy
    from proctor.protocols.inference_messages import ServerInfo
    from proctor.serving.service import PolicyService

_SETTLE_S = 1.0
"""A shutdown takes some milliseconds; a signal that comes later interrupts it."""
_USAGE = """\
proctor serve --policy.path=CHECKPOINT [--protocol=openpi,vla-eval,groot] [--FLAG=VALUE ...]

Serve a policy until Ctrl-C. Requests of all clients and protocols share inference batches. A policy
without a checkpoint takes its input features from --env.type. Clients of other machines need the
printed API key.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.serving import ServeConfig

    given = parse_flags(ServeConfig, words, _USAGE)
    if given is None:
        return 0
    from proctor.callbacks.interrupts import Interrupts
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.serving.server import check_ports_free, serving
    from proctor.system.platform.memory import keep_freed_memory

    config = build(ServeConfig, merge_settings(given))
    keep_freed_memory()
    key = config.api_key
    if key is None and not config.is_here:
        key = secrets.token_urlsafe(24)
    limits = config.limits(key)
    limits.ssl_context()  # check certificate and ports before the policy is loaded
    check_ports_free(config.endpoints, limits)
    with (
        Interrupts(settle_s=_SETTLE_S),
        opened(config) as service,
        serving(config.endpoints, service, limits) as at,
    ):
        _say_where(config, service, at, key)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            health = service.health()
            print(f"\n{health['answered']} requests in {health['batches']} batches")
    return 0


@contextmanager
def opened(config: ServeConfig) -> Iterator[PolicyService]:
    """Load the policy and start its batcher."""
    from functools import partial

    from proctor import plugins
    from proctor.engine.chunks import shaped_chunks
    from proctor.serving.batcher import RequestBatcher
    from proctor.serving.inputs import Inputs, parse_state_parts
    from proctor.serving.service import PolicyService

    plugin = plugins.find_policy(config.policy.type)
    if plugin.pin is not None:
        config = copy.copy(config)  # with its notes
        config.policy = plugin.pin(config.policy)
    interface = _interface(config)
    with plugins.blame_plugin("policies", config.policy.type):
        policy = plugin.make(config.played_policy, interface)
    for warning in policy.spec.warnings:
        print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
    features = {key: interface.features[key] for key in policy.spec.inputs}
    spec, parts = policy.spec, parse_state_parts(config.state_parts, features)
    inputs = Inputs(features, spec.n_obs_steps, spec.language_conditioned, parts)
    act = partial(shaped_chunks, policy, action=interface.action)
    batcher = RequestBatcher(policy, act, max_batch=config.max_batch, seed=config.seed)
    batcher.warm_up(features)
    try:
        yield PolicyService(batcher, inputs, _about(config, policy, interface))
    finally:
        batcher.close()


def _interface(config: ServeConfig) -> Interface:
    """Return what the policy is made for: what a benchmark offers, or what its files say."""
    from proctor import plugins
    from proctor.benchmarks.base import interface_of

    plugin = plugins.find_policy(config.policy.type)
    if plugin.check_config is not None:
        plugin.check_config(config.policy)
    if config.env is not None:
        return interface_of(plugins.benchmark_maker(config.env)(), config.env)
    if plugin.trained_interface is None:
        raise UsageError(
            f"--policy.type={config.policy.type} states no input features: name a benchmark "
            "whose observations it is to be asked about, with --env.type",
            code="policy.unknown-inputs",
        )
    return plugin.trained_interface(config.policy)


def _about(config: ServeConfig, policy: Policy, interface: Interface) -> ServerInfo:
    """Return what is said of the policy to clients of ours."""
    from proctor.fingerprint import defining_fields
    from proctor.plugins import plugin_code_hashes
    from proctor.policies.base import Policy as Base
    from proctor.protocols.inference_messages import ObservationField, ServerInfo

    features = {key: interface.features[key] for key in policy.spec.inputs}
    spec = policy.spec
    defined = {
        "config": defining_fields(config.policy),
        "code": plugin_code_hashes("policies", config.policy.type),
        **policy.protocol(),
    }
    definition = json.dumps(defined, sort_keys=True, default=str)
    return ServerInfo(
        policy=spec.name,
        inputs={k: ObservationField(f.kind, list(f.shape), f.dtype) for k, f in features.items()},
        action_size=interface.action.size,
        n_obs_steps=spec.n_obs_steps,
        n_action_steps=spec.n_action_steps,
        fingerprint=hashlib.sha256(definition.encode()).hexdigest(),
        language_conditioned=spec.language_conditioned,
        bit_exact=spec.bit_exact,
        remembers=spec.remembers and type(policy).new_episode is not Base.new_episode,
        asked_every=spec.steps_per_query,
    )


def _notes(config: ServeConfig, about: ServerInfo) -> Iterator[str]:
    """Yield what a user should know of the policy and of what is spoken."""
    if config.tls_cert is not None and "groot" in config.protocol:
        yield "groot is not encrypted: its protocol has no encryption"
    mute = [name for name in config.protocol if name in ("openpi", "lerobot")]
    if mute and (about.n_obs_steps > 1 or about.remembers):
        uses = f"uses the last {about.n_obs_steps} observations, here those of the last requests"
        does = uses if about.n_obs_steps > 1 else "keeps state during an episode"
        yield (
            f"the policy {does}; requests of {' and '.join(mute)} do not say when an episode "
            "begins, so clients other than Proctor must open a new connection for each episode"
        )


def _say_where(
    config: ServeConfig, service: PolicyService, addresses: list[str], key: str | None
) -> None:
    about = service.server_info
    for line in (*config.notes, *_notes(config, about)):
        print(strip_control_codes(f"note: {line}"), file=sys.stderr)
    inputs = ", ".join(f"{key} {s.dtype} {s.shape}" for key, s in about.inputs.items())
    inputs = inputs or "no inputs"
    print(strip_control_codes(f"{about.policy}: {inputs} -> actions of {about.action_size}"))
    for name, address in zip(config.protocol, addresses, strict=True):
        print(f"{name:<9} {address}")
    if key is not None:
        print(f"key       {key if config.api_key is None else '(as given)'}")
    print("(Ctrl-C ends it)", flush=True)
