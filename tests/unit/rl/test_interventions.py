"""A person takes over with a teleoperator."""

from collections.abc import Mapping

import numpy as np
import pytest

from proctor.benchmarks.gym_hil.tasks import ACTION_NAMES
from proctor.control.terminal.keys import KeyHub
from proctor.errors import UsageError
from proctor.rl.actor.interventions import TeleopIntervention, to_vector
from proctor.robots.base import Action, Operator, RealClock, Teleoperator, Unit


class _Hand(Teleoperator):
    """A controller that wants to move forward and close the gripper."""

    name = "hand"
    clock = RealClock()
    is_connected = True

    def __init__(self) -> None:
        self.n_starts = 0

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return dict.fromkeys(("delta_x", "delta_y", "delta_z", "gripper"), Unit.OTHER)

    def connect(self, operator: Operator | None = None) -> None: ...

    def disconnect(self) -> None: ...

    def start_episode(self) -> None:
        self.n_starts += 1

    def get_action(self) -> Action:
        return {"delta_x": 1.0, "delta_y": 0.0, "delta_z": -0.5, "gripper": 0.0}


def test_space_takes_over_and_hands_back() -> None:
    hub, hand = KeyHub(), _Hand()
    person = TeleopIntervention(hand, ACTION_NAMES, hub.reader())
    person.begin(0)
    drives = []
    for key in (None, "space", None, "space", None):
        if key is not None:
            hub.press(key)
        drives.append(person.signal(0, None).action is not None)
    assert drives == [False, True, True, False, False]
    assert hand.n_starts == 1


def test_close_is_close_in_gym_hil() -> None:
    action = to_vector(_Hand().get_action(), ACTION_NAMES)
    np.testing.assert_array_equal(action, [1.0, 0.0, -0.5, 2.0])
    usual = to_vector(_Hand().get_action(), ("delta_x", "gripper"))
    np.testing.assert_array_equal(usual, [1.0, 0.0])


@pytest.mark.parametrize(
    ("key", "meaning"),
    [("enter", "success"), ("right", "success"), ("f", "failure"), ("r", "rerecord")],
)
def test_keys_judge_the_episode(key: str, meaning: str) -> None:
    hub = KeyHub()
    person = TeleopIntervention(_Hand(), ACTION_NAMES, hub.reader())
    hub.press(key)
    person.begin(0)
    assert not person.signal(0, None).success  # keys from before the episode do not count
    hub.press(key)
    signal = person.signal(1, None)
    assert [name for name in ("success", "failure", "rerecord") if getattr(signal, name)] == [
        meaning
    ]


def test_a_teleoperator_without_the_channels_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        TeleopIntervention(_Hand(), ("elbow_flex.pos",), KeyHub().reader())
    assert refused.value.code == "rl.teleop-mismatch"
