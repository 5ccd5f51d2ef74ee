"""Values as people type them: YAML's flow style, JSON and comma lists mean the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.errors import UsageError
from proctor.features import Feature, FeatureKind
from proctor.parsing import DEEPEST, MOST_CHARACTERS, RepeatedKey, load_yaml, parse_flow, parse_text
from proctor.policies.act.config import ActConfig
from proctor.policies.lerobot.checkpoint.checkpoint import override
from tests.refusals import refuses

BASE = {"policy.type": "random", "env.type": "fake"}


def built(**flags: Any) -> Any:
    return build(EvalConfig, {**BASE, **{name.replace("__", "."): v for name, v in flags.items()}})


@pytest.mark.parametrize(
    "text",
    [
        "[observation.image, observation.state]",
        "[observation.image,observation.state]",
        '["observation.image","observation.state"]',
        "['observation.image', 'observation.state']",
        "observation.image,observation.state",
        " [observation.image, observation.state,] ",
    ],
)
def test_a_list_flag_takes_yaml_json_and_commas(text: str) -> None:
    assert built(policy__inputs=text).policy.inputs == ["observation.image", "observation.state"]


@pytest.mark.parametrize("text", ["{0/0/1: raise}", '{"0/0/1":"raise"}', "{'0/0/1': raise}"])
def test_a_map_flag_takes_yaml_and_json(text: str) -> None:
    config = built(env__faults=text)
    assert {key: fault.value for key, fault in config.env.faults.items()} == {"0/0/1": "raise"}


@pytest.mark.parametrize(
    "text", ["{0/0/1: raise, 0/0/1: hang}", '{"0/0/1":"raise","0/0/1":"hang"}']
)
def test_a_map_flag_gives_each_key_once(text: str) -> None:
    with pytest.raises(RepeatedKey):
        parse_flow(text)
    with refuses(UsageError, "flag.invalid-value"):
        built(env__faults=text)


def test_words_in_a_map_of_anything_are_what_json_would_make_of_them() -> None:
    text = "{size: 8, rate: 1e3, on: yes, off: null, day: 2020-01-01, id: 010, q: '1', ok: true}"
    assert parse_flow(text) == {
        "size": 8, "rate": 1000.0, "on": "yes", "off": None, "day": "2020-01-01", "id": "010",
        "q": "1", "ok": True,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["on", "1e3", "null", "none", "[a", "{a: b}", "2020-01-01", "~"])
def test_a_text_flag_keeps_its_text(text: str) -> None:
    assert parse_text(str, text) == text
    assert built(live_host=text).live_host == text


@pytest.mark.parametrize("text", ["none", "null", "None"])
def test_an_optional_flag_that_is_no_text_takes_none(text: str) -> None:
    assert built(env__task_ids=text).env.task_ids is None
    assert built(video__fps=text).video.fps is None


@pytest.mark.parametrize("tasks", ["point,other", "[point, other]", '["point","other"]'])
def test_tasks_are_names_with_commas_or_a_list(tasks: str) -> None:
    assert built(env__task=tasks).env.task == "point,other"
    assert built(env__task=["point", "other"]).env.task == "point,other"
    nested = {"policy": {"type": "random"}, "env": {"type": "fake", "task": ["point", "other"]}}
    assert build(EvalConfig, nested).env.task == "point,other"


def test_cameras_are_names_too_and_a_number_is_no_name() -> None:
    flags = {"policy.type": "random", "env.type": "metaworld"}
    config: Any = build(EvalConfig, {**flags, "env.camera_name": "[corner2, corner]"})
    assert config.env.camera_name == "corner2,corner"
    with refuses(UsageError, "flag.invalid-value") as refused:
        build(EvalConfig, {**flags, "env.task": [1]})
    assert "--env.task" in str(refused.value)


def test_flags_of_a_checkpoint_are_read_in_the_same_way() -> None:
    config = ActConfig(
        input_features={"observation.environment_state": Feature(FeatureKind.ENV, (4,), "float32")},
        output_features={"action": Feature(FeatureKind.ACTION, (4,), "float32")},
    )
    changed = override(config, {"rename_map": "{a: b}", "n_action_steps": "8"})
    assert (changed.rename_map, changed.n_action_steps) == ({"a": "b"}, 8)
    with pytest.raises(UsageError) as refused:
        override(config, {"rename_map": "{a:b}"})
    assert "--policy.rename_map" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        "{a: " * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1),
        "[" + "1," * MOST_CHARACTERS + "1]",
        "[&a [x, x], *a, *a]",
        "[!!python/object/apply:os.system [ls]]",
        "[!!timestamp x]",
        "[1" + "0" * 5000 + "]",
        "[a] b",
        "[\x00]",
        "[\ud800]",
        "{[a]: b}",
        "{a:b}",
        "a: b",
    ],
)
def test_what_is_hostile_or_no_value_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse_flow(text)
    assert "\n" not in str(caught.value)
    with refuses(UsageError, "flag.invalid-value") as refused:
        build(EvalConfig, {"policy.type": "zero", "env.type": "gym", "env.kwargs": text})
    assert "--env.kwargs" in str(refused.value)


def test_a_file_whose_tags_yaml_trips_over_is_one_line() -> None:
    with pytest.raises(ValueError, match="groupdict"):
        load_yaml("a: !!timestamp x")


def test_a_number_or_a_map_is_read_as_what_it_is() -> None:
    kind = float | dict[str, float] | None
    assert parse_text(kind, "{gripper: 5}") == {"gripper": 5}
    assert parse_text(kind, "5") == "5"
    assert parse_text(kind, "null") is None
    assert parse_text(str, "{gripper: 5}") == "{gripper: 5}"
