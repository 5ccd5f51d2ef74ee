"""State parts: what is sent to a server, and in which order the server joins parts."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from proctor.commands.evaluation.serve import opened
from proctor.config.builder import build
from proctor.config.serving import ServeConfig
from proctor.errors import SpecMismatch, UsageError
from proctor.features import STATE, ActionSpec, Array, Feature, FeatureKind, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec, Query
from proctor.policies.remote.config import RemoteConfig, Rotation
from proctor.policies.remote.policy import RemotePolicy
from proctor.protocols import groot
from proctor.protocols.openpi import decode_request, encode_reply
from proctor.serving.inputs import Inputs
from proctor.types import EpisodeSpec, Task
from tests.refusals import refuses
from tests.unit.protocols.serving import asked, npy, odd_openpi, served

SPEC = EpisodeSpec(Task("s", 0, "t", "go", 50, 10), 0, 1)
POSE, VELOCITY = STATE, "observation.joint_velocity"


def interface(**sizes: int) -> Interface:
    """A benchmark with states of given sizes."""
    features = {
        name.replace("__", "."): Feature(FeatureKind.STATE, (size,), "float32")
        for name, size in sizes.items()
    }
    return Interface("two states", features, ActionSpec(2))


def sent(offered: Interface, **flags: Any) -> tuple[dict[str, Array], RemotePolicy]:
    """Return what another server receives of states 0.1, 0.2, ..., and the policy."""
    seen: dict[str, Array] = {}

    def answer(say: Any, frame: bytes) -> None:
        seen.update(decode_request(frame).observation)
        say(encode_reply(np.zeros((1, 2), np.float32), {}))

    with odd_openpi(answer) as url:
        policy = RemotePolicy(RemoteConfig(url=url, **flags), offered)
        batch = {
            key: (np.arange(f.shape[0], dtype=np.float32) / 10 + 0.1)[None, None]
            for key, f in offered.features.items()
        }
        state = policy.new_episode(SPEC)
        policy.act(Batch([Query(SPEC, 0, state)], batch))
        policy.close()
    return seen, policy


BOTH = {POSE: "observation/state", VELOCITY: "observation/velocity"}


def test_only_the_robots_pose_is_sent_with_another_rotation() -> None:
    offered = interface(observation__state=7, observation__joint_velocity=7)
    seen, policy = sent(offered, rotation=Rotation.QUATERNION_XYZW, rename_map=BOTH)
    assert seen["observation/state"].shape == (8,)
    assert np.allclose(seen["observation/velocity"], np.arange(7) / 10 + 0.1)
    assert any(f"numbers 3 to 5 of {POSE}" in note for note in policy.spec.notes)


def test_another_state_may_be_the_pose() -> None:
    offered = interface(observation__state=7, observation__joint_velocity=7)
    seen, _ = sent(
        offered, rotation=Rotation.QUATERNION_XYZW, rotation_key=VELOCITY, rename_map=BOTH
    )
    assert seen["observation/state"].shape == (7,)
    assert seen["observation/velocity"].shape == (8,)


def test_the_only_state_is_the_pose_whatever_its_name() -> None:
    seen, _ = sent(interface(observation__pose=7), rotation=Rotation.QUATERNION_XYZW)
    assert seen["observation/state"].shape == (8,)


@pytest.mark.parametrize(
    "flags",
    [
        {"rename_map": {"observation.pose": "a", VELOCITY: "b"}},
        {"rename_map": {"observation.pose": "a", VELOCITY: "b"}, "rotation_key": "observation.x"},
        {"rename_map": {"observation.pose": "a", VELOCITY: "b"}, "rotation_at": 5,
         "rotation_key": VELOCITY},
    ],
)  # fmt: skip
def test_a_rotation_that_cannot_be_found_is_refused(flags: dict[str, Any]) -> None:
    offered = interface(observation__pose=7, observation__joint_velocity=7)
    with refuses(SpecMismatch, "policy.no-rotation"):
        sent(offered, rotation=Rotation.EULER, **flags)


class Echo(Policy):
    """Returns its state as the action."""

    def __init__(self, config: PolicyConfig, offered: Interface) -> None:
        self.spec = PolicySpec("echo", (STATE,))

    def act(self, batch: Batch) -> Array:
        return batch.observations[STATE][:, -1:]


ECHO = PolicyPlugin(PolicyConfig, Echo, "says what it sees")
ECHOED = "tests.unit.protocols.test_state_parts:ECHO"


def answered(url: str, parts: dict[str, float | list[float]]) -> Any:
    """Return the reply to a GR00T client that sends the state in these parts, in this order."""
    state = {name: npy(np.atleast_1d(np.float32(v))[None, None]) for name, v in parts.items()}
    data = {"observation": {"state": state}, "options": None}
    return asked(url, {"endpoint": "get_action", "data": data})


def actions_in(reply: Any) -> list[float]:
    found = groot.decode_actions(msgspec.msgpack.encode(reply)).actions
    assert found is not None
    return list(found[0].tolist())


def test_parts_of_a_state_are_joined_in_the_declared_order() -> None:
    with served(policy__type=ECHOED, protocol=["groot"], state_parts=["arm:1", "gripper:1"]) as (
        url,
        _,
    ):
        assert actions_in(answered(url, {"arm": 0.25, "gripper": 0.75})) == [0.25, 0.75]
        assert actions_in(answered(url, {"gripper": 0.75, "arm": 0.25})) == [0.25, 0.75]
        assert "state/arm" in answered(url, {"gripper": 0.75, "leg": 0.1})["error"]
        assert "state/arm" in answered(url, {"gripper": 0.75, "arm": [0.1, 0.2]})["error"]
        assert "state/leg" in answered(url, {"gripper": 0.75, "arm": 0.25, "leg": 0.2})["error"]
        config = asked(url, {"endpoint": "get_modality_config"})
        assert config["state"]["as_json"]["modality_keys"] == ["arm", "gripper"]


def test_parts_whose_order_nobody_declared_are_refused() -> None:
    with served(policy__type=ECHOED, protocol=["groot"]) as (url, _):
        assert "--state_parts" in answered(url, {"arm": 0.25, "gripper": 0.75})["error"]
        assert actions_in(answered(url, {"state": [0.25, 0.75]})) == [0.25, 0.75]
        assert actions_in(answered(url, {"whatever": [0.25, 0.75]})) == [0.25, 0.75]


def test_the_names_of_a_features_numbers_declare_the_order() -> None:
    feature = Feature(FeatureKind.STATE, (2,), "float32", names=("arm", "gripper"))
    assert Inputs({STATE: feature}, 1).state_parts == (("arm", 1), ("gripper", 1))
    assert Inputs({STATE: feature}, 1, parts=(("a", 2),)).state_parts == (("a", 2),)
    other = Feature(FeatureKind.STATE, (2,), "float32", names=("arm", "arm"))
    assert Inputs({STATE: other}, 1).state_parts == ()


@pytest.mark.parametrize("parts", [["arm:1"], ["arm:1", "arm:1"], ["arm"], ["arm:0", "b:2"]])
def test_parts_that_are_not_the_state_are_refused_before_anything_starts(parts: list[str]) -> None:
    with (
        pytest.raises(UsageError) as refused,
        opened(
            build(
                ServeConfig,
                {
                    "policy.type": ECHOED,
                    "env.type": "fake",
                    "protocol": ["groot"],
                    "state_parts": parts,
                },
            )
        ),
    ):
        pass
    assert "--state_parts" in str(refused.value)


def test_one_state_of_a_client_is_not_taken_for_two_of_the_policy() -> None:
    state = Feature(FeatureKind.STATE, (2,), "float32")
    inputs = Inputs({POSE: state, VELOCITY: state}, 1)
    assert inputs.aliases([], "state/state") == {POSE: "state/state"}
    only = Inputs({VELOCITY: state}, 1)
    assert only.aliases([], "state/state") == {VELOCITY: "state/state"}
