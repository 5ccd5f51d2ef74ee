"""Maps a client's observation to the policy's inputs and checks names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.errors import ProtocolError, UsageError, strip_control_codes
from proctor.features import STATE, Array, Feature, FeatureKind
from proctor.policies.remote.names import is_wrist
from proctor.protocols.inference_messages import InferenceRequest

StateParts = tuple[tuple[str, int], ...]
"""Names and sizes of the parts of a state, in order."""


@dataclass(frozen=True)
class Inputs:
    """A policy's input features, by its own names."""

    features: Mapping[str, Feature]
    n_obs_steps: int
    language_conditioned: bool = False
    parts: StateParts = ()
    """Parts of the state, as the user declares them (--state_parts)."""

    @property
    def state_key(self) -> str | None:
        """The state feature: the only one, else ``observation.state``; None without any."""
        states = [key for key, f in self.features.items() if f.kind is FeatureKind.STATE]
        return states[0] if len(states) == 1 else STATE if STATE in states else None

    @property
    def state_parts(self) -> StateParts:
        """The declared parts of the state; else its numbers, if they have distinct names."""
        key = self.state_key
        names = () if key is None else self.features[key].names or ()
        if self.parts or len(set(names)) < len(names):
            return self.parts
        return tuple((name, 1) for name in names)

    def aliases(self, cameras: Sequence[str], state: str) -> dict[str, str]:
        """Return the client's name for each of the policy's inputs.

        A camera is matched by the last part of its name, then as a wrist camera. The others are
        matched in order; a single camera is never matched to a wrist camera by order.
        """
        images = [key for key, f in self.features.items() if f.kind is FeatureKind.VISUAL]
        found: dict[str, str] = {}
        for alike in (_same_name, _both_at_wrist, _anything if len(images) > 1 else _same_place):
            for key in images:
                free = (name for name in cameras if name not in found.values())
                name = next((name for name in free if alike(key, name)), None)
                if key not in found and name is not None:
                    found[key] = name
        ours = self.state_key
        return found if ours is None else found | {ours: state}

    def rows(self, request: InferenceRequest, aliases: Mapping[str, str]) -> dict[str, Array]:
        """Return the policy's inputs from a request."""
        if self.language_conditioned and not (request.prompt or request.episode):
            raise ProtocolError(
                "the policy needs an instruction; send a prompt", code="protocol.missing-input"
            )
        return {key: self._row(key, request, aliases.get(key, key)) for key in self.features}

    def _row(self, key: str, request: InferenceRequest, alias: str) -> Array:
        feature = self.features[key]
        name = key if key in request.observation else alias
        if name not in request.observation:
            wanted = f"{feature.dtype} {list(feature.shape)}"
            also = "" if alias == key else f" (or {alias!r})"
            sent = strip_control_codes(", ".join(request.observation), 300) or "nothing"
            slashed = key.replace(".", "/")
            if slashed in request.observation:
                also = f" with dots: with several states, openpi's {slashed!r} stands for none"
            raise ProtocolError(
                f"the policy needs {key!r}{also}, {wanted}; the client sent {sent}",
                code="protocol.missing-input",
            )
        values = request.observation[name]
        shape = (self.n_obs_steps, *feature.shape) if request.history else feature.shape
        if values.shape != shape:
            wanted = f"{feature.dtype} {list(shape)}"
            got = f"{values.dtype} {list(values.shape)}"
            raise ProtocolError(
                f"the policy needs {name!r} as {wanted}; the client sent {got}",
                code="protocol.wrong-shape",
            )
        if feature.kind is FeatureKind.VISUAL and values.dtype != np.uint8:
            raise ProtocolError(
                f"{name!r} is {values.dtype}; send images as uint8, 0 to 255",
                code="protocol.wrong-dtype",
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ProtocolError(f"{name!r} contains NaN or infinity", code="protocol.not-finite")
        return values.astype(feature.dtype, copy=False)


def parse_state_parts(flag: Sequence[str], features: Mapping[str, Feature]) -> StateParts:
    """Parse --state_parts, a list of NAME:COUNT."""
    found: list[tuple[str, int]] = []
    for part in flag:
        name, _, count = part.strip().partition(":")
        if not name or not count.isdecimal() or not 0 < int(count[:9]) < 10**6:
            raise UsageError(
                f"--state_parts: {part!r} is not NAME:COUNT, such as arm:7",
                code="flag.invalid-value",
            )
        found.append((name, int(count)))
    if len(dict(found)) < len(found):
        raise UsageError(
            f"--state_parts={','.join(flag)} names a part twice", code="flag.duplicate"
        )
    key = Inputs(features, 1).state_key
    if found and key is None:
        raise UsageError(
            "--state_parts: the policy does not have exactly one state input; leave the flag out",
            code="flag.conflict",
        )
    total = sum(count for _, count in found)
    if found and key is not None and (total,) != features[key].shape:
        raise UsageError(
            f"--state_parts={','.join(flag)} has {total} numbers, {key} has "
            f"{list(features[key].shape)}",
            code="flag.conflict",
        )
    return tuple(found)


def _same_name(ours: str, theirs: str) -> bool:
    return ours.rpartition(".")[2] == theirs.rpartition("/")[2]


def _both_at_wrist(ours: str, theirs: str) -> bool:
    return is_wrist(ours) and is_wrist(theirs)


def _same_place(ours: str, theirs: str) -> bool:
    return is_wrist(ours) == is_wrist(theirs)


def _anything(ours: str, theirs: str) -> bool:
    return True
