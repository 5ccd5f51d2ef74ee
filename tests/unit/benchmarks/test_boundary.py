"""Every value that foreign code gives is checked: a wrong type or value is one error that names it.

Boundaries: a plug-in's simulator, a gymnasium environment, one from the Hub, a world in another
interpreter, a policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from proctor.benchmarks.checks import check_benchmark
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.benchmarks.gym.hub_env import SingleEnv
from proctor.benchmarks.gym.sim import GymSim
from proctor.benchmarks.gym.success import parse_success
from proctor.benchmarks.isolated.launch import Launch
from proctor.benchmarks.isolated.local_sim import LocalSim
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.engine.chunks import checked_chunks
from proctor.engine.expert_labeler import ExpertLabeler
from proctor.errors import PluginError, PolicyError, SimulatorFault
from proctor.features import ActionSpec, Feature, FeatureKind
from proctor.policies.base import Batch, Policy, PolicySpec, Query
from proctor.policies.checks import check_policy
from proctor.types import StepResult, Task
from proctor_worker.boundary import WrongValue
from proctor_worker.gym_env.opener import OldEnv
from proctor_worker.server import read_step
from tests.refusals import refuses

NAN, HUGE = float("nan"), 1e308
NO_NUMBER: dict[str, Any] = {
    "text": "1.0",
    "an object": object(),
    "nothing": None,
    "complex": 1 + 2j,
    "a map": {"a": 1.0},
    "two numbers": [1.0, 2.0],
    "uneven lists": [[1.0], [1.0, 2.0]],
}
NO_FLAG: dict[str, Any] = {
    **NO_NUMBER,
    "the text False": "False",
    "the text 0": "0",
    "NaN": NAN,
    "minus one": -1.0,
    "a half": 0.5,
    "two": 2,
}
FLAGS: list[tuple[Any, bool]] = [
    (True, True),
    (np.False_, False),
    (1, True),
    (np.float32(1), True),
    (np.array([0]), False),
    (0.0, False),
]
SHAPE = (4, 4, 3)
NO_IMAGE: dict[str, Any] = {
    "floats in 0..1": np.full(SHAPE, 0.8),
    "NaN": np.full(SHAPE, NAN),
    "integers above 255": np.full(SHAPE, 300),
    "negative integers": np.full(SHAPE, -1),
    "texts": np.full(SHAPE, "a"),
    "objects": np.full(SHAPE, None),
    "complex": np.full(SHAPE, 1j),
}
NO_STATE: dict[str, Any] = {
    "text": np.full(2, "0.5"),
    "objects": np.full(2, None),
    "complex": np.full(2, 1j),
    "uneven lists": [[1.0], [1.0, 2.0]],
}
NOT_FINITE: dict[str, Any] = {
    "NaN": np.array([0, NAN]),
    "infinite": np.array([0, np.inf]),
    "infinite as float32": np.array([0, 1e39]),
}
STEP: dict[str, Any] = {"reward": 0.0, "success": False, "terminated": False}
FEATURES = {
    "observation.image": Feature(FeatureKind.VISUAL, SHAPE, "uint8"),
    "observation.state": Feature(FeatureKind.STATE, (2,), "float32"),
}
HERE = "test_boundary.py"
CONTRACT = "plugin.contract-violation"


def wrong_steps() -> dict[str, dict[str, Any]]:
    """Return steps with one wrong value each."""
    flags = {
        f"{name}: {what}": {name: value}
        for name in ("success", "terminated")
        for what, value in NO_FLAG.items()
        if not (name == "success" and value is None)
    }
    rewards = {f"reward: {what}": {"reward": value} for what, value in NO_NUMBER.items()}
    return {**flags, **rewards}


class Theirs(FakeSim):
    """A plug-in's simulator that gives what a test says."""

    def __init__(self, step: dict[str, Any] | None = None, **seen: Any) -> None:
        fake = Fake(FakeConfig())
        super().__init__(FakeConfig(), fake.tasks()[0])
        self._step: dict[str, Any] = STEP | (step or {})
        self._seen = seen

    def step(self, action: Any) -> StepResult:
        return StepResult(**self._step)

    def observe(self, keys: Any) -> Any:
        return {f"observation.{key}": value for key, value in self._seen.items()}

    def physics(self) -> Any:
        return self._seen["physics"]


def guarded(sim: Any) -> GuardedSim:
    return GuardedSim(sim, FEATURES)


def names_this_plug_in(call: Callable[..., Any], *arguments: Any) -> None:
    """Check that a call is refused in one line that names the class and the file."""
    with refuses(PluginError, CONTRACT) as refused:
        call(*arguments)
    said = str(refused.value)
    assert "\n" not in said
    assert HERE in said
    assert "Theirs" in said


@pytest.mark.parametrize("what", wrong_steps())
def test_a_wrong_type_in_a_step_is_the_plug_ins_mistake(what: str) -> None:
    names_this_plug_in(guarded(Theirs(wrong_steps()[what])).step, np.zeros(2))


@pytest.mark.parametrize(("value", "is_true"), FLAGS)
def test_a_flag_is_a_bool_or_0_or_1_of_python_or_numpy(value: Any, is_true: bool) -> None:
    step = guarded(Theirs({"success": value, "terminated": value})).step(np.zeros(2))
    assert step.success is is_true
    assert step.terminated is is_true


@pytest.mark.parametrize("score", NO_NUMBER)
def test_a_score_that_is_no_number_is_the_plug_ins_mistake(score: str) -> None:
    names_this_plug_in(guarded(Theirs({"scores": {"reach": NO_NUMBER[score]}})).step, np.zeros(2))


@pytest.mark.parametrize("number", [NAN, np.inf, HUGE, 1e39, -HUGE])
def test_a_reward_or_score_that_float32_cannot_hold_is_the_simulators_fault(number: float) -> None:
    for wrong in ({"reward": number}, {"scores": {"reach": number}}):
        with pytest.raises(SimulatorFault):
            guarded(Theirs(wrong)).step(np.zeros(2))


@pytest.mark.parametrize("image", NO_IMAGE)
def test_an_image_that_uint8_cannot_hold_is_the_plug_ins_mistake(image: str) -> None:
    names_this_plug_in(guarded(Theirs(image=NO_IMAGE[image])).observe, ["observation.image"])


@pytest.mark.parametrize("state", NO_STATE)
def test_a_state_or_physics_that_is_no_number_is_the_plug_ins_mistake(state: str) -> None:
    sim = guarded(Theirs(state=NO_STATE[state], physics=NO_STATE[state]))
    names_this_plug_in(sim.observe, ["observation.state"])
    names_this_plug_in(sim.physics)


@pytest.mark.parametrize("state", NOT_FINITE)
def test_a_state_that_is_not_finite_where_it_is_stored_is_the_simulators_fault(state: str) -> None:
    with pytest.raises(SimulatorFault):
        guarded(Theirs(state=NOT_FINITE[state])).observe(["observation.state"])


def test_a_value_that_is_missing_or_of_another_shape_is_the_simulators_fault() -> None:
    for sim in (Theirs(), Theirs(state=np.zeros(3))):
        with pytest.raises(SimulatorFault):
            guarded(sim).observe(["observation.state"])


def test_what_the_declared_dtype_holds_passes_as_it_is() -> None:
    image = np.full(SHAPE, 255, np.int64)
    seen = guarded(Theirs(image=image, state=np.ones(2, np.float64))).observe(list(FEATURES))
    assert seen["observation.image"].dtype == np.uint8
    assert (seen["observation.image"] == 255).all()
    assert seen["observation.state"].dtype == np.float64, "the window casts it"


class TheirEnv(gymnasium.Env[Any, Any]):
    """A gymnasium environment that gives what a test says."""

    observation_space = gymnasium.spaces.Dict(
        {
            "pixels": gymnasium.spaces.Box(0, 255, SHAPE, np.uint8),
            "agent_pos": gymnasium.spaces.Box(-9, 9, (2,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, **given: Any) -> None:
        self._given = given

    def _look(self) -> dict[str, Any]:
        good = {"pixels": np.zeros(SHAPE, np.uint8), "agent_pos": np.zeros(2, np.float32)}
        return {key: self._given.get(key, value) for key, value in good.items()}

    def reset(self, **_: Any) -> Any:
        return self._given.get("reset", (self._look(), {}))

    def step(self, action: Any) -> Any:
        get = self._given.get
        if "step" in self._given:
            return self._given["step"]
        flags = get("terminated", False), get("truncated", False)
        return self._look(), get("reward", 0.0), *flags, {"solved": get("solved", False)}

    def render(self) -> Any:
        return self._given["rendered"]


class OneOfAVector:
    """A vector environment of one ``TheirEnv``, as a ``make_env`` of the Hub may return."""

    num_envs, render_mode = 1, None
    metadata: dict[str, Any] = {}  # noqa: RUF012  as gymnasium declares it
    single_observation_space = TheirEnv.observation_space
    single_action_space = TheirEnv.action_space

    def __init__(self, **given: Any) -> None:
        self._env = TheirEnv(**given)

    def reset(self, **_: Any) -> Any:
        if "reset" in self._env._given:
            return self._env.reset()
        seen, info = self._env.reset()
        return {key: [value] for key, value in seen.items()}, info

    def step(self, actions: Any) -> Any:
        if "step" in self._env._given:
            return self._env.step(actions)
        seen, reward, terminated, truncated, info = self._env.step(actions[0])
        batch = {key: [value] for key, value in seen.items()}
        return batch, [reward], [terminated], [truncated], {k: [v] for k, v in info.items()}


def gym_sim(rule: str = "info.solved", *, hub: bool = False, **given: Any) -> GuardedSim:
    def open_env() -> Any:
        return SingleEnv(OneOfAVector(**given)) if hub else TheirEnv(**given)

    sim = guarded(GymSim(open_env, parse_success(rule), fresh=False))
    task = Task("theirs", 0, "theirs", "", 10, 10)
    sim.reset(SimpleNamespace(seed=0, task=task))  # type: ignore[arg-type]
    return sim


def names_the_environment(call: Callable[..., Any], *arguments: Any) -> None:
    with refuses(PluginError, CONTRACT) as refused:
        call(*arguments)
    said = str(refused.value)
    assert "\n" not in said
    assert "test_boundary.TheirEnv" in said or "test_boundary.OneOfAVector" in said


@pytest.mark.parametrize("hub", [False, True], ids=["gym", "hub"])
@pytest.mark.parametrize("name", ["solved", "terminated", "truncated"])
@pytest.mark.parametrize("value", [value for value in NO_FLAG if value != "nothing"])
def test_a_flag_of_an_environment_is_a_bool_or_0_or_1(value: str, name: str, hub: bool) -> None:
    names_the_environment(gym_sim(hub=hub, **{name: NO_FLAG[value]}).step, np.zeros(2))


@pytest.mark.parametrize("hub", [False, True], ids=["gym", "hub"])
@pytest.mark.parametrize("reward", NO_NUMBER)
def test_a_reward_of_an_environment_is_a_number(reward: str, hub: bool) -> None:
    names_the_environment(gym_sim(hub=hub, reward=NO_NUMBER[reward]).step, np.zeros(2))


@pytest.mark.parametrize("hub", [False, True], ids=["gym", "hub"])
@pytest.mark.parametrize("image", NO_IMAGE)
def test_an_image_of_an_environment_has_the_dtype_of_its_space(image: str, hub: bool) -> None:
    sim = gym_sim(hub=hub, pixels=NO_IMAGE[image])
    names_the_environment(sim.observe, ["observation.image"])


@pytest.mark.parametrize("hub", [False, True], ids=["gym", "hub"])
@pytest.mark.parametrize("state", NO_STATE)
def test_a_state_of_an_environment_has_numbers(state: str, hub: bool) -> None:
    sim = gym_sim(hub=hub, agent_pos=NO_STATE[state])
    names_the_environment(sim.observe, ["observation.state"])


NO_STEP: dict[str, Any] = {
    "nothing": None,
    "four values": ({}, 0.0, False, {}),
    "six values": ({}, 0.0, False, False, {}, {}),
    "a dict": {"reward": 0.0},
    "text": "steps",
    "info that is nothing": ({}, 0.0, False, False, None),
    "info that is a list": ({}, 0.0, False, False, ["solved"]),
}
NO_RESET: dict[str, Any] = {
    "nothing": None,
    "the observation alone": {"pixels": np.zeros(SHAPE, np.uint8), "agent_pos": np.zeros(2)},
    "three values": ({}, {}, {}),
    "info that is nothing": ({}, None),
}
NO_OBSERVATION: dict[str, Any] = {
    "nothing": None,
    "an array": np.zeros(2),
    "a dict that lacks a key": {"pixels": np.zeros(SHAPE, np.uint8)},
    "a dict of texts": {"pixels": "", "agent_pos": "zero"},
}


@pytest.mark.parametrize("hub", [False, True], ids=["gym", "hub"])
@pytest.mark.parametrize("step", NO_STEP)
def test_a_step_of_an_environment_is_five_values_and_info_a_dict(step: str, hub: bool) -> None:
    names_the_environment(gym_sim(hub=hub, step=NO_STEP[step]).step, np.zeros(2))


@pytest.mark.parametrize("hub", [False, True], ids=["gym", "hub"])
@pytest.mark.parametrize("reset", NO_RESET)
def test_a_reset_of_an_environment_is_an_observation_and_info(reset: str, hub: bool) -> None:
    names_the_environment(lambda: gym_sim(hub=hub, reset=NO_RESET[reset]))


@pytest.mark.parametrize("method", ["observe", "physics", "coordinates"])
@pytest.mark.parametrize("seen", NO_OBSERVATION)
def test_an_observation_has_the_parts_of_its_space(seen: str, method: str) -> None:
    sim = gym_sim(reset=(NO_OBSERVATION[seen], {}))
    keys = [["observation.state"]] if method == "observe" else []
    names_the_environment(getattr(sim, method), *keys)


@pytest.mark.parametrize("value", [value for value in NO_FLAG if value != "nothing"])
def test_done_of_an_old_environment_is_a_bool_or_0_or_1(value: str) -> None:
    class Old:
        observation_space = action_space = metadata = None

        def step(self, action: Any) -> Any:
            return {}, 0.0, NO_FLAG[value], {}

    with pytest.raises(WrongValue):
        OldEnv(Old()).step(0)


def test_an_environments_state_that_is_not_finite_is_the_simulators_fault() -> None:
    for state in NOT_FINITE.values():
        with pytest.raises(SimulatorFault):
            gym_sim(agent_pos=state).observe(["observation.state"])


def test_an_observation_of_another_shape_is_not_reshaped() -> None:
    sim = gym_sim(pixels=np.zeros((3, 4, 4), np.uint8), agent_pos=np.zeros((2, 1)))
    names_the_environment(sim.observe, ["observation.image"])
    assert sim.observe(["observation.state"])["observation.state"].shape == (2,)


@pytest.mark.parametrize(
    ("value", "rule", "solved"),
    [
        (0.5, "info.solved>=0.5", True),
        (-1.0, "info.solved>=0.5", False),
        (["kettle"], "info.solved", True),
        ({"kettle", "door"}, "info.solved>=2", True),
        ([True, True], "info.solved", True),
        (np.array([1.0, 0.0]), "info.solved", False),
    ],
)
def test_a_rule_with_a_threshold_takes_numbers_and_a_list_may_name_subgoals(
    value: Any, rule: str, solved: bool
) -> None:
    assert gym_sim(rule, solved=value).step(np.zeros(2)).success is solved


@pytest.mark.parametrize("value", [NAN, "0.7", {"a": 1.0}])
def test_a_threshold_takes_nothing_but_numbers(value: Any) -> None:
    names_the_environment(gym_sim("info.solved>=0.5", solved=value).step, np.zeros(2))


WORLD = Launch("their_world:make", {}, python="/their/python")


class TheirWorld:
    """A world of another interpreter with one simulator, itself."""

    def __init__(self, step: dict[str, Any] | None = None) -> None:
        self._step = tuple((STEP | (step or {})).values())

    def open(self, task: dict[str, Any]) -> Any:
        return self

    def step(self, action: Any) -> Any:
        return self._step


@pytest.mark.parametrize("what", wrong_steps())
def test_a_step_of_a_world_in_another_interpreter_is_checked_there(what: str) -> None:
    wrong = wrong_steps()[what]
    with pytest.raises(WrongValue):
        read_step(tuple((STEP | wrong).values()))
    task = Task("theirs", 0, "theirs", "", 10, 10)
    sim = LocalSim(WORLD, TheirWorld(wrong), task)  # type: ignore[arg-type]
    with refuses(PluginError, CONTRACT) as refused:
        sim.step(np.zeros(2))
    assert "their_world:make" in str(refused.value)
    assert "/their/python" in str(refused.value)


def test_a_step_of_a_world_is_a_tuple_of_three_or_four() -> None:
    step = read_step((np.float32(1), 1, np.False_, {"a": np.int8(3)}))
    assert step == (1.0, True, False, {"a": 3.0})
    for no_step in (None, 0.0, (0.0, False), [0.0, False, False], (0.0, None, False, 3)):
        with pytest.raises(WrongValue):
            read_step(no_step)


@pytest.mark.parametrize("action", [["0.5", "1"], None, {"x": 1.0}, np.full(2, 1j)])
def test_an_experts_action_that_is_no_numbers_is_the_plug_ins_mistake(action: Any) -> None:
    class Theirs(Fake):
        def expert(self, task: Task) -> Any:
            return lambda observation: action

    benchmark = Theirs(FakeConfig())
    spec = benchmark.spec(benchmark.tasks()[0], 0, 1)
    labeler = ExpertLabeler(benchmark, spec, ExpertLabeling())
    seen = {key: np.zeros(benchmark.features()[key].shape) for key in labeler.inputs}
    with refuses(PluginError, CONTRACT) as refused:
        labeler.expert_action(seen, 0)
    assert HERE in str(refused.value)


NO_TASK: list[dict[str, Any]] = [
    {"max_steps": "10"},
    {"max_steps": 0},
    {"max_steps": 1.5},
    {"fps": True},
    {"fps": -1},
    {"task_id": None},
    {"task_id": -1},
    {"instruction": None},
    {"name": b"reach"},
    {"suite": 3},
]
NO_FEATURE: list[dict[str, Any]] = [
    {"shape": [4]},
    {"shape": ("4",)},
    {"shape": (-1,)},
    {"dtype": "text"},
    {"dtype": "complex64"},
    {"dtype": np.uint8},
    {"kind": "VISUAL"},
]
NO_ACTION: list[dict[str, Any]] = [
    {"size": "2"},
    {"size": 0},
    {"low": "0"},
    {"low": (0.0,)},
    {"high": (1.0, NAN)},
    {"clipped": "False"},
]


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (part, wrong)
        for part, all_wrong in (("task", NO_TASK), ("feature", NO_FEATURE), ("action", NO_ACTION))
        for wrong in all_wrong
    ],
    ids=str,
)
def test_what_a_plug_in_lists_has_the_types_of_its_records(
    part: str, wrong: dict[str, Any]
) -> None:
    class Theirs(Fake):
        def tasks(self) -> list[Task]:
            return [replace(task, **wrong if part == "task" else {}) for task in super().tasks()]

        def features(self) -> dict[str, Feature]:
            wrong_here = wrong if part == "feature" else {}
            return {k: replace(feature, **wrong_here) for k, feature in super().features().items()}

    benchmark = Theirs(FakeConfig())
    check_benchmark(Fake(FakeConfig()))
    if part == "action":
        benchmark.action = ActionSpec(**({"size": 2} | wrong))
    with refuses(PluginError, CONTRACT) as refused:
        check_benchmark(benchmark)
    assert HERE in str(refused.value)
    assert next(iter(wrong)) in str(refused.value)


class TheirPolicy(Policy):
    """A policy that gives what a test says."""

    def __init__(self, actions: Any, n_action_steps: int | None) -> None:
        self.spec = PolicySpec("theirs", n_action_steps=n_action_steps)
        self._actions = actions

    def act(self, batch: Batch) -> Any:
        return self._actions


@pytest.mark.parametrize("n_action_steps", [1, None])
@pytest.mark.parametrize(
    "actions",
    [
        [[["1.0", "2.0"]]],
        [[[1j, 0]]],
        np.full((1, 1, 2), None),
        [[[1.0, 2.0], [3.0]]],
        [[[NAN, 0.0]]],
        [[[1e39, 0.0]]],
    ],
    ids=["texts", "complex", "objects", "uneven", "NaN", "infinite as float32"],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_actions_that_are_no_finite_numbers_are_the_policys_error(
    actions: Any, n_action_steps: int | None
) -> None:
    fake = Fake(FakeConfig())
    query = Query(fake.spec(fake.tasks()[0], 0, 1), 0, None)  # type: ignore[arg-type]
    batch = Batch([query], {})
    with pytest.raises(PolicyError) as refused:
        checked_chunks(TheirPolicy(actions, n_action_steps), batch, ActionSpec(2))
    assert refused.value.code in ("policy.wrong-dtype", "policy.not-finite")
    assert "'theirs'" in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 3},
        {"inputs": "observation.state"},
        {"inputs": (1,)},
        {"inputs": 5},
        {"n_obs_steps": True},
        {"n_obs_steps": 1.5},
        {"n_action_steps": "5"},
        {"n_action_steps": 0},
    ],
    ids=str,
)
def test_a_policys_spec_has_the_types_of_its_record(wrong: dict[str, Any]) -> None:
    policy = TheirPolicy(None, 1)
    check_policy(policy)
    policy.spec = PolicySpec(**({"name": "theirs", "n_action_steps": 1} | wrong))
    with refuses(PluginError, CONTRACT) as refused:
        check_policy(policy)
    assert HERE in str(refused.value)
    assert next(iter(wrong)) in str(refused.value)
