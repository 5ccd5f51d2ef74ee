"""Flags of PushT, ALOHA, gymnasium and Hub environments, read without any of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.gym.success import SuccessInputs, SuccessRule, SuccessSource, parse_success
from proctor.cli import main
from proctor.config.builder import benchmark_config_from
from proctor.errors import UsageError
from proctor.features import ActionSpec
from proctor.plugins import find_benchmark
from proctor.policies.scripted.random import RandomConfig, RandomPolicy


def made(**settings: Any) -> Any:
    return find_benchmark(settings["type"]).make(benchmark_config_from(settings))


def tasks(**settings: Any) -> list[tuple[str, int, str]]:
    return [(task.suite, task.task_id, task.name) for task in made(**settings).tasks()]


def test_pusht_has_one_task_under_all_its_names() -> None:
    for name in ("PushT-v0", "pusht", "gym_pusht/PushT-v0"):
        assert tasks(type="pusht", task=name) == [("pusht", 0, "PushT-v0")]


def test_alohas_tasks_are_groups_of_their_own_or_one_group() -> None:
    insertion, cube = "AlohaInsertion-v0", "AlohaTransferCube-v0"
    assert tasks(type="aloha") == [(insertion, 0, insertion)]
    assert tasks(type="aloha", task=f"gym_aloha/{cube}") == [(cube, 0, cube)]
    assert tasks(type="aloha", task="aloha") == [("aloha", 0, insertion), ("aloha", 1, cube)]
    assert tasks(type="aloha", task="aloha", task_ids=[1]) == [("aloha", 1, cube)]


BAD = {
    "pusht --env.task=PushX-v0": "pusht has no task 'PushX-v0' (choose PushT-v0)",
    "pusht --env.task_ids=[1]": "pusht has no task 1 (choose 0)",
    "pusht --env.obs_type=keypoints": "--env.obs_type",
    "pusht --env.observation_height=0": "--env.observation_height must be at least 1",
    "aloha --env.task=AlohaInsert-v0": "did you mean 'AlohaInsertion-v0'?",
    "aloha --env.episode_length=0": "--env.episode_length must be at least 1",
    "gym --env.id=CartPole-v1 --env.episode_length=0": "--env.episode_length must be at least 1",
    "gym --env.id=CartPole-v1 --env.success=info": "'info' is not a rule",
    "hub": "--env.path is missing",
    "hub --env.path=./nothing.py --trust_remote_code": "nothing.py does not exist",
    "pusht --policy.type=expert": "pusht has no",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *others = words.split()
    if not any(word.startswith("--policy.type") for word in others):
        others.append("--policy.type=random")
    folder = f"--output_dir={tmp_path / 'run'}"
    assert main(["eval", f"--env.type={kind}", *others, folder]) == 2
    said = capsys.readouterr().err
    assert BAD[words] in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "module", "extra"),
    [
        ({"type": "pusht"}, "gym_pusht", "pusht"),
        ({"type": "aloha"}, "gym_aloha", "aloha"),
        ({"type": "gym", "id": "CartPole-v1"}, "gymnasium", "gym"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    settings: dict[str, Any], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == module else find(name, *a)
    )
    with pytest.raises(Exception, match=rf"pip install 'proctor\[{extra}\]'"):
        made(**settings).preflight(["observation.state"])


def test_an_opencv_that_does_not_load_is_said_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: object())
    monkeypatch.setitem(sys.modules, "cv2", None)  # Python's own way to make an import fail
    with pytest.raises(UsageError) as refused:
        made(type="pusht").preflight(["observation.state"])
    assert "apt-get install libgl1 libglib2.0-0" in str(refused.value)


def test_nothing_of_them_is_imported_to_read_their_flags() -> None:
    heavy = "gym_pusht pymunk pygame cv2 gym_aloha dm_control mujoco gymnasium huggingface_hub"
    program = (
        "import sys; from proctor.plugins import find_benchmark as find\n"
        "for name in ('pusht', 'aloha', 'gym', 'hub'): find(name).config()\n"
        "for name in ('pusht', 'aloha'): find(name).make(find(name).config()).features()\n"
        f"print(*set('{heavy}'.split()) & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("terminated", SuccessRule(SuccessSource.TERMINATED)),
        ("info.is_success", SuccessRule(SuccessSource.INFO, path=("is_success",))),
        ("info.a.b", SuccessRule(SuccessSource.INFO, path=("a", "b"))),
        ("info.score>=0.5", SuccessRule(SuccessSource.INFO, path=("score",), threshold=0.5)),
        ("reward >= -1e-3", SuccessRule(SuccessSource.REWARD, threshold=-1e-3)),
        ("return>=200", SuccessRule(SuccessSource.RETURN, threshold=200)),
        ("truncated", SuccessRule(SuccessSource.TRUNCATED)),
        ("none", SuccessRule(SuccessSource.NONE)),
        ("at_end", SuccessRule(SuccessSource.INFO, path=("is_success",), at_end=True)),
        ("info.won at_end", SuccessRule(SuccessSource.INFO, path=("won",), at_end=True)),
        ("reward>=1, at_end", SuccessRule(SuccessSource.REWARD, threshold=1, at_end=True)),
    ],
)
def test_success_is_read_from_words(text: str, rule: SuccessRule) -> None:
    assert parse_success(text) == rule


def test_info_that_does_not_say_is_not_a_failure() -> None:
    assert judged("info.a.b", info={"a": {"b": np.bool_(True)}}) is True
    assert judged("info.a.b", info={"a": {"b": 0}}) is False
    assert judged("info.a.b", info={"a": 3}) is None
    assert judged("info.a.b") is None


@pytest.mark.parametrize(
    ("rule", "moment", "solved"),
    [
        ("terminated", {"terminated": True, "ended": True}, True),
        ("truncated", {"terminated": True, "ended": True}, False),
        ("truncated", {"ended": True}, True),
        ("truncated", {}, False),
        ("reward>=1", {"reward": 1.0}, True),
        ("reward>=1 at_end", {"reward": 1.0}, False),
        ("reward>=1 at_end", {"reward": 1.0, "ended": True}, True),
        ("return>=-200", {"episode_return": -3.0}, False),
        ("return>=-200", {"episode_return": -150.0, "ended": True}, True),
        ("return>=-200", {"episode_return": -201.0, "ended": True}, False),
        ("at_end", {"info": {"is_success": True}}, False),
        ("at_end", {"info": {"is_success": True}, "ended": True}, True),
        ("info.score>=0.5", {"info": {"score": 0.5}}, True),
        ("info.score>=0.5", {"info": {"score": 0.4}}, False),
        ("info.done>=2", {"info": {"done": ["kettle", "microwave"]}}, True),
        ("info.done>=2", {"info": {"done": ["kettle"]}}, False),
        ("info.done", {"info": {"done": []}}, False),
        ("info.done", {"info": {"done": ["kettle"]}}, True),
        ("info.all", {"info": {"all": np.array([True, False])}}, False),
        ("none", {"reward": 1.0, "terminated": True, "ended": True}, None),
    ],
)
def test_every_rule_judges_a_step_or_the_end(
    rule: str, moment: dict[str, Any], solved: bool | None
) -> None:
    assert judged(rule, **moment) is solved


def judged(rule: str, **moment: Any) -> bool | None:
    given: dict[str, Any] = {"reward": 0.0, "episode_return": 0.0, "terminated": False} | moment
    return parse_success(rule).judge(SuccessInputs(**{"ended": False, "info": {}, **given}))


def test_random_actions_keep_to_the_bounds_of_each_dimension() -> None:
    class Bounded:
        name = "bounded"
        action = ActionSpec(4, (0.0, -5.0, -np.inf, 3.0), (1.0, 5.0, np.inf, np.inf))

        def features(self) -> dict[str, Any]:
            return {}

    policy = RandomPolicy(RandomConfig(n_action_steps=500), Bounded())  # type: ignore[arg-type]
    query = type("Query", (), {"state": np.random.default_rng(0)})()
    batch = type("Batch", (), {"queries": [query]})()
    drawn = policy.act(batch)[0]
    np.testing.assert_allclose(drawn.min(axis=0), [0, -5, -1, 3], atol=0.1)
    np.testing.assert_allclose(drawn.max(axis=0), [1, 5, 1, 5], atol=0.1)
    assert Bounded.action.count_out_of_range(drawn) == 0
    assert Bounded.action.count_out_of_range(drawn + np.array([1, 0, 0, 0])) == len(drawn)
