"""Meta-World's tasks, groups, cameras and features, without a simulator."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from proctor.benchmarks.metaworld import benchmark as metaworld
from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.benchmarks.metaworld.tasks import SPLITS, TASKS
from proctor.errors import MissingExtra, NoGraphics, UsageError
from proctor.features import Feature, FeatureKind
from proctor.types import EpisodeSpec, Task
from tests.refusals import refuses


def make(**flags: Any) -> Metaworld:
    return Metaworld(MetaworldConfig(**flags))


def listed(**flags: Any) -> list[tuple[str, int, str]]:
    return [(task.suite, task.task_id, task.name) for task in make(**flags).tasks()]


def test_the_table_has_50_tasks_whose_ids_are_their_places() -> None:
    assert [row.task_id for row in TASKS] == list(range(50))
    assert len({row.name for row in TASKS}) == 50
    assert (TASKS[48].name, TASKS[49].name) == ("window-open-v3", "window-close-v3")


def test_the_splits_part_the_table() -> None:
    assert {split: len(names) for split, names in SPLITS.items()} == {
        "easy": 28,
        "medium": 11,
        "hard": 6,
        "very_hard": 5,
    }
    assert {(row.name, row.split) for row in TASKS} == {
        (name, split) for split, names in SPLITS.items() for name in names
    }


def test_without_flags_all_50_tasks_are_listed_by_their_table_ids() -> None:
    assert listed() == [("mt50", row.task_id, row.name) for row in TASKS]


def test_a_split_numbers_its_tasks_in_its_own_order() -> None:
    assert listed(task="very_hard") == [
        ("very_hard", 0, "shelf-place-v3"),
        ("very_hard", 1, "disassemble-v3"),
        ("very_hard", 2, "stick-pull-v3"),
        ("very_hard", 3, "stick-push-v3"),
        ("very_hard", 4, "pick-place-wall-v3"),
    ]


@pytest.mark.parametrize("name", ["push-v3", "push", "metaworld-push-v3", " metaworld-push "])
def test_a_task_may_be_named_short_or_with_the_lerobot_prefix(name: str) -> None:
    assert listed(task=name) == [("push-v3", 0, "push-v3")]


def test_a_task_carries_its_instruction_horizon_and_frame_rate() -> None:
    (task,) = make(task="reach", episode_length=120).tasks()
    assert task == Task("reach-v3", 0, "reach-v3", "Reach a goal position", 120, 80)


def test_two_tasks_have_the_same_words_as_in_lerobots_table_and_no_others() -> None:
    words = Counter(task.instruction for task in TASKS)
    same = [task.name for task in TASKS if words[task.instruction] > 1]
    assert same == ["push-back-v3", "push-v3"]


def test_a_task_named_twice_is_listed_once_where_it_is_named_first() -> None:
    tasks = listed(task="push,hard,push-v3,medium")
    assert tasks[0] == ("push-v3", 0, "push-v3")
    assert [name for _, _, name in tasks].count("push-v3") == 1
    assert len(tasks) == 6 + 11
    assert ("hard", 5, "push-back-v3") in tasks


def test_task_ids_select_inside_every_group() -> None:
    assert listed(task="hard,medium", task_ids=[3, 0]) == [
        ("hard", 0, "assembly-v3"),
        ("hard", 3, "pick-place-v3"),
        ("medium", 0, "basketball-v3"),
        ("medium", 3, "coffee-pull-v3"),
    ]


def test_a_task_that_task_ids_leave_out_of_one_group_still_counts_in_the_next() -> None:
    assert listed(task="hard,push", task_ids=[0]) == [
        ("hard", 0, "assembly-v3"),
        ("push-v3", 0, "push-v3"),
    ]


@pytest.mark.parametrize(
    ("flags", "code", "named"),
    [
        ({"task": "medium", "task_ids": [20]}, "env.unknown-task", ["medium", "20", "0-10"]),
        ({"task": "medium", "task_ids": [-1]}, "env.unknown-task", ["medium", "-1", "0-10"]),
        ({"task": "push", "task_ids": [1]}, "env.unknown-task", ["push-v3", "1", "0"]),
        ({"task_ids": []}, "flag.empty", ["--env.task_ids"]),
        ({"task": "reech-v3"}, "env.unknown-task", ["'reech-v3'", "'reach-v3'"]),
        ({"task": "hrd"}, "env.unknown-task", ["'hrd'", "'hard'"]),
        ({"task": "push-v2"}, "env.unknown-task", ["'push-v2'", "'push-v3'"]),
        ({"task": "xyzzy"}, "env.unknown-task", ["'xyzzy'", "mt50, easy, medium", "reach-v3"]),
        ({"task": ""}, "flag.invalid-value", ["--env.task", "''"]),
        ({"task": "push,,reach"}, "flag.invalid-value", ["--env.task", "'push,,reach'"]),
        ({"observation_height": 0}, "flag.out-of-range", ["--env.observation_height", "1", "0"]),
        ({"observation_width": -3}, "flag.out-of-range", ["--env.observation_width", "1", "-3"]),
        ({"episode_length": 0}, "flag.out-of-range", ["--env.episode_length", "1", "0"]),
        ({"camera_name": "corner9"}, "env.unknown-camera", ["'corner9'", "corner, corner2, "]),
        ({"camera_name": "corner2,"}, "flag.invalid-value", ["--env.camera_name", "'corner2,'"]),
        ({"camera_name_mapping": {"topview": "top"}}, "env.unknown-camera",
         ["--env.camera_name_mapping", "'topview'", "--env.camera_name ", "corner2"]),
        ({"camera_name": "corner2,corner2"}, "flag.duplicate", ["observation.images.corner2"]),
    ],
)  # fmt: skip
def test_invalid_flags_are_refused_in_one_line(
    flags: dict[str, Any], code: str, named: list[str]
) -> None:
    with refuses(UsageError, code) as refused:
        make(**flags)
    assert all(datum in str(refused.value) for datum in named)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ({}, ["observation.image"]),
        (
            {"camera_name": "corner2, topview"},
            ["observation.images.corner2", "observation.images.topview"],
        ),
        ({"camera_name_mapping": {"corner2": "top"}}, ["observation.images.top"]),
        ({"camera_name_mapping": {"corner2": "observation.image"}}, ["observation.image"]),
        (
            {"camera_name": "corner2,topview", "camera_name_mapping": {"topview": "above"}},
            ["observation.images.corner2", "observation.images.above"],
        ),
    ],
)
def test_cameras_become_the_features_lerobot_would_name(
    flags: dict[str, Any], keys: list[str]
) -> None:
    features = make(observation_height=48, observation_width=64, **flags).features()
    image = Feature(FeatureKind.VISUAL, (48, 64, 3), "uint8")
    assert features == {
        **dict.fromkeys(keys, image),
        "observation.state": Feature(FeatureKind.STATE, (4,), "float32"),
        "observation.environment_state": Feature(FeatureKind.ENV, (39,), "float64"),
    }


def test_an_episodes_seed_is_the_runs_seed_plus_its_index() -> None:
    benchmark = make(task="push")
    (task,) = benchmark.tasks()
    assert benchmark.spec(task, 7, seed=1000) == EpisodeSpec(task, index=7, seed=1007)


def test_the_protocol_tells_where_each_camera_stands_and_how_it_is_turned() -> None:
    protocol = make(camera_name="corner2,topview", episode_length=321).protocol()
    assert protocol["horizon"] == 321
    assert protocol["cameras"] == {
        "observation.images.corner2": {
            "camera": "corner2",
            "position": [0.75, 0.075, 0.7],
            "flip": "both axes",
        },
        "observation.images.topview": {
            "camera": "topview",
            "position": "as in the XML",
            "flip": "none",
        },
    }


def test_preflight_asks_for_graphics_only_when_images_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metaworld.importlib.util, "find_spec", lambda module: object())
    monkeypatch.setenv("MUJOCO_GL", "disable")
    assert make().preflight(["observation.state"]) == {"MUJOCO_GL": "disable"}
    with refuses(NoGraphics, "gl.unavailable") as refused:
        make().preflight(["observation.state", "observation.image"])
    assert "MUJOCO_GL" in str(refused.value)


def test_preflight_names_the_extra_when_metaworld_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metaworld.importlib.util, "find_spec", lambda module: None)
    with refuses(MissingExtra, "extra.missing") as refused:
        make().preflight([])
    assert "pip install 'proctor[metaworld]'" in str(refused.value)


def test_tasks_and_config_travel_between_processes() -> None:
    tasks = make(task="easy").tasks()
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    config = MetaworldConfig(task="hard")
    assert pickle.loads(pickle.dumps(config)) == config


def test_listing_tasks_imports_no_simulator() -> None:
    script = (
        "import sys\n"
        "from proctor.benchmarks.metaworld.benchmark import PLUGIN\n"
        "benchmark = PLUGIN.make(PLUGIN.config(task='easy,push'))\n"
        "assert len(benchmark.tasks()) == 29 and benchmark.features() and benchmark.protocol()\n"
        "heavy = {'metaworld', 'mujoco', 'gymnasium', 'OpenGL', 'scipy', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
