"""The fingerprint covers everything that defines an episode, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.commands.evaluation.audit import run as audit
from proctor.commands.evaluation.compare import run as compare
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.sections.evaluation import EvalSettings
from proctor.errors import UsageError
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.fingerprint import changed_fields, defining_fields, describe_changes, is_presentation
from proctor.policies.base import Batch
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.report.run.page import write_page
from proctor.runs.folder import RunFolder
from proctor.system.platform.source_files import module_hashes, source_hashes
from tests.refusals import refuses
from tests.run_folders import RECORD, eight_episodes, write_run

HUB_ENV = """
import gymnasium
from helper import {imported}

def make_env(n_envs=1, use_async_envs=False, cfg=None):
    return gymnasium.make("CartPole-v1")
"""


def protocol(**flags: Any) -> dict[str, Any]:
    settings = {"policy.type": "random", "env.type": "fake"}
    settings |= {name.replace("__", "."): value for name, value in flags.items()}
    return prepare(build(EvalConfig, settings)).protocol()


def changed(**flags: Any) -> list[str]:
    return list(changed_fields(protocol(), protocol(**flags)))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"env__image_size": 32}, "benchmark.config.image_size"),
        ({"env__episode_length": 9}, "benchmark.config.episode_length"),
        ({"env__endless": True}, "benchmark.config.endless"),
        ({"policy__n_action_steps": 2}, "policy.config.n_action_steps"),
        ({"policy__inputs": ["observation.state"]}, "policy.config.inputs"),
        ({"seed": 7}, "seed"),
    ],
)
def test_every_setting_that_is_not_presentation_is_in_the_fingerprint(
    flags: dict[str, Any], name: str
) -> None:
    assert name in changed(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"eval__batch_size": 3},
        {"eval__use_async_envs": False},
        {"eval__scheduler": "lockstep"},
        {"eval__n_episodes": 2},
        {"eval__strict": True},
        {"eval__watchdog_s": 9},
        {"env__step_ms": 1},
        {"env__max_parallel_tasks": 1},
        {"video__episodes": 0},
        {"wandb__project": "other"},
        {"live_port": 1},
        {"output_dir": "elsewhere"},
    ],
)
def test_what_is_named_as_presentation_is_not(flags: dict[str, Any]) -> None:
    assert changed(**flags) == []


def test_a_setting_that_nobody_thought_of_defines_an_episode() -> None:
    @dataclass
    class Later(EvalSettings):
        new: int = 3
        batch_size: int = field(default=5, metadata={"help": "marked by the class above"})

    assert defining_fields(Later()) == {"repeats": None, "latency_steps": None, "new": 3}


def test_only_seed_policy_environment_repeats_and_latency_are_left_unmarked() -> None:
    names = [field.name for field in dataclasses.fields(EvalConfig)]
    left = [name for name in names if not is_presentation(EvalConfig, name)]
    assert left == ["policy", "env", "eval", "seed"]
    assert defining_fields(EvalSettings()) == {"repeats": None, "latency_steps": None}


def test_values_are_said_shortly_and_many_are_counted() -> None:
    both = {"policy.files.config.json": ("a" * 64, "b" * 64), "x": ("y" * 500, None)}
    said = describe_changes(both)
    assert said.startswith(
        "the policy's file config.json: policy.files.config.json was aaaaaaaaaaaa, now "
        "bbbbbbbbbbbb; x was 'yyy"
    )
    assert len(said) < 250
    assert describe_changes({"benchmark.config.id": ("a", None)}) == "--env.id was 'a', now not set"
    assert describe_changes({str(n): (1, 2) for n in range(9)}).endswith(
        "5 was 1, now 2; and 3 more"
    )


def test_an_imported_helper_of_a_hub_environment_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(HUB_ENV.format(imported="GRAVITY"))
    (tmp_path / "helper.py").write_text("from deeper import more\nGRAVITY = 9.8\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "__init__.py").write_text("from . import more\n")
    (tmp_path / "deeper" / "more.py").write_text("X = 1\n")
    (tmp_path / "notes.txt").write_text("of no use")
    before = source_hashes(tmp_path / "env.py")
    assert sorted(before) == ["deeper/__init__.py", "deeper/more.py", "env.py", "helper.py"]
    (tmp_path / "helper.py").write_text("from deeper import more\nGRAVITY = 1.6\n")
    assert list(changed_fields(before, source_hashes(tmp_path / "env.py"))) == ["helper.py"]


def test_a_hub_environment_says_its_files(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "env.py").write_text(HUB_ENV.format(imported="GRAVITY"))
    (tmp_path / "helper.py").write_text("GRAVITY = 9.8\n")
    flags = {
        "env__type": "hub",
        "env__path": str(tmp_path),
        "env__success": "reward>=2",
        "env__trust_remote_code": True,
    }
    before = protocol(**flags)
    (tmp_path / "helper.py").write_text("GRAVITY = 1.6\n")
    assert list(changed_fields(before, protocol(**flags))) == ["benchmark.files.helper.py"]


def test_the_code_of_a_gym_package_that_is_not_installed_is_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_worlds").mkdir()
    (tmp_path / "my_worlds" / "__init__.py").write_text("from my_worlds.physics import G")
    (tmp_path / "my_worlds" / "physics.py").write_text("G = 9.8")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = ["my_worlds/__init__.py", "my_worlds/physics.py"]
    assert sorted(module_hashes("my_worlds")) == files
    assert sorted(module_hashes("my_worlds.physics")) == files
    assert "my_worlds" not in sys.modules
    assert module_hashes("numpy") == module_hashes("") == module_hashes("no_such_module") == {}


def test_the_code_of_a_policy_by_name_is_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_helper.py").write_text("SCALE = 1\n")
    (tmp_path / "my_policy.py").write_text(
        "from my_helper import SCALE\n"
        "from proctor.policies.scripted.random import RandomConfig, RandomPolicy\n"
        "def make(config: RandomConfig, interface): return RandomPolicy(config, interface)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = protocol(policy__type="my_policy:make")
    assert sorted(before["policy"]["code"]) == ["my_helper.py", "my_policy.py"]
    (tmp_path / "my_helper.py").write_text("SCALE = 2\n")
    after = protocol(policy__type="my_policy:make")
    assert list(changed_fields(before, after)) == ["policy.code.my_helper.py"]


def test_a_run_of_an_older_format_is_shown_and_compared_but_not_resumed(
    run: Callable[..., Evaluation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run().path
    record = RunFolder(path).read()
    assert record is not None
    old = {
        "benchmark": {"type": "fake", "horizon": 50, "endless": False},
        "policy": {"type": "random", "replan_steps": 1},
        "seed": 1000,
        "environment": {},
        "versions": {},
    }
    RunFolder(path).write(replace(record, protocol=old, bit_reproducible=None))
    with refuses(UsageError, "run.older-protocol"):
        run(output_dir=str(path), resume=True)
    write_page(path)
    assert compare([str(path), str(run().path), f"--html={tmp_path / 'c.html'}"]) == 0
    assert "protocols differ" not in capsys.readouterr().err
    assert audit([str(path), "--episodes=2"]) == 0
    assert "digests are not compared" in capsys.readouterr().out


def test_pairs_are_refused_where_a_seed_names_different_worlds(tmp_path: Path) -> None:
    other = {**RECORD.protocol, "benchmark": {"type": "metaworld", "horizon": 50}}
    a = write_run(tmp_path / "a", eight_episodes())
    b = write_run(tmp_path / "b", eight_episodes(), replace(RECORD, protocol=other))
    with pytest.raises(UsageError) as refused:
        compare([str(a), str(b)])
    assert all(text in str(refused.value) for text in ("'fake'", "'metaworld'", "--unpaired"))
    assert compare([str(a), str(b), "--unpaired", f"--html={tmp_path / 'c.html'}"]) == 0


class OnAnAccelerator(RandomPolicy):
    """Rounds differently for every batch, as a network on a GPU does without --eval.strict."""

    bit_exact = False
    calls = 0
    amount = 1e-6

    def __init__(self, config: RandomConfig, interface: Any) -> None:
        super().__init__(config, interface)
        self.spec = replace(self.spec, bit_exact=self.bit_exact)

    def act(self, batch: Batch) -> Array:
        type(self).calls += 1
        drawn = super().act(batch)
        wobble: Array = (drawn * (1 + self.amount * type(self).calls)).astype(np.float32)
        return wobble


def make_rounding(config: RandomConfig, interface: Any) -> OnAnAccelerator:
    return OnAnAccelerator(config, interface)


def rounding_run(run: Callable[..., Evaluation]) -> tuple[Path, str]:
    name = f"{__name__}:make_rounding"
    flags = {"policy__type": name, "eval__use_async_envs": False, "env__endless": True}
    return run(**flags).path, f"--policy.type={name}"


def test_an_audit_of_an_accelerators_run_compares_outcomes_and_returns(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    path, flag = rounding_run(run)
    assert json.loads((path / "run.json").read_text())["bit_reproducible"] is False
    assert audit([str(path), flag]) == 0
    said = capsys.readouterr().out
    assert "digests are not compared" in said
    assert "returns within 1%" in said
    assert "4 episodes run again, 0 different" in said


def test_an_audit_of_an_accelerators_run_still_finds_another_policy(
    run: Callable[..., Evaluation],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, flag = rounding_run(run)
    monkeypatch.setattr(OnAnAccelerator, "amount", -0.1)
    assert audit([str(path), flag]) == 1
    assert "differs: sum_reward" in capsys.readouterr().out


def test_an_audit_where_bits_are_promised_compares_digests(
    run: Callable[..., Evaluation],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OnAnAccelerator, "bit_exact", True)
    path, flag = rounding_run(run)
    assert json.loads((path / "run.json").read_text())["bit_reproducible"] is True
    assert audit([str(path), flag]) == 1
    assert "digest" in capsys.readouterr().out


def test_an_audit_refuses_a_run_whose_code_has_changed(
    run: Callable[..., Evaluation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "edited_policy.py"
    text = (
        "from proctor.policies.scripted.zero import ZeroConfig, ZeroPolicy\n"
        "def make(config: ZeroConfig, interface): return ZeroPolicy(config, interface)\n"
    )
    file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = run(policy__type="edited_policy:make", eval__use_async_envs=False).path
    flag = "--policy.type=edited_policy:make"
    assert audit([str(path), flag]) == 0
    file.write_text(text + "# mended\n")
    with refuses(UsageError, "run.changed") as refused:
        audit([str(path), flag])
    assert "policy.code.edited_policy.py" in str(refused.value)
    sys.modules.pop("edited_policy")
