from __future__ import annotations

import importlib.util
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.libero import benchmark as libero
from proctor.benchmarks.libero import tasks as libero_tasks
from proctor.benchmarks.libero import versions
from proctor.benchmarks.libero.benchmark import Horizons, Libero, LiberoConfig
from proctor.benchmarks.mujoco.render_config import ObservationType
from proctor.errors import MissingExtra, UsageError
from proctor.evaluation.plan import make_plan
from tests.refusals import refuses


def test_suites_have_their_tasks_in_order() -> None:
    tasks = Libero(LiberoConfig(task="libero_all")).tasks()
    assert len(tasks) == 40
    assert tasks[0].instruction == (
        "pick up the black bowl between the plate and the ramekin and place it on the plate"
    )
    assert tasks[39].suite == "libero_10"
    assert tasks[39].instruction == "put the yellow and white mug in the microwave and close it"
    assert len(Libero(LiberoConfig(task="libero_90")).tasks()) == 90


def test_horizons_are_lerobots_or_openpis_or_given() -> None:
    def horizons(**flags: Any) -> list[int]:
        benchmark = Libero(LiberoConfig(task="libero_all", task_ids=[0], **flags))
        return [task.max_steps for task in benchmark.tasks()]

    assert horizons() == [280, 280, 300, 520]
    assert horizons(protocol=Horizons.OPENPI) == [220, 280, 300, 520]
    assert horizons(episode_length=7) == [7, 7, 7, 7]


@pytest.mark.parametrize("n_episodes", [50, 70])
def test_each_init_state_is_used_before_any_is_used_again(n_episodes: int) -> None:
    benchmark = Libero(LiberoConfig(task="libero_goal", task_ids=[0]))
    plan = make_plan(benchmark, range(n_episodes), 1000)
    assert [spec.init_state for spec in plan] == [i % 50 for i in range(n_episodes)]
    assert len({spec.world for spec in plan}) == 50


def test_init_states_are_arrays_of_numbers() -> None:
    for task in Libero(LiberoConfig(task="libero_all", task_ids=[0])).tasks():
        states = libero_tasks.read_init_states(task.suite, task.name)
        assert states.shape[0] == libero.N_INIT_STATES
        assert np.isfinite(states).all()


class Trap:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_init_states_with_code_in_them_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "init_files" / "libero_goal"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "evil.pruned_init", "w") as archive:
        content = io.BytesIO()
        pickle.dump(Trap(tmp_path / "executed"), content)
        archive.writestr("archive/data.pkl", content.getvalue())
    monkeypatch.setattr(libero_tasks, "package_folder", lambda: tmp_path)
    with refuses(UsageError, "env.broken-install") as refused:
        libero_tasks.read_init_states("libero_goal", "evil")
    assert "mkdir" in str(refused.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("flags", "code", "named"),
    [
        ({"task": "libero_spacial"}, "env.unknown-task", "'libero_spatial'"),
        ({"task": "kitchen"}, "env.unknown-task", "libero_spatial"),
        ({"task": "libero_goal", "task_ids": [12]}, "env.unknown-task", "0-9"),
        ({"camera_name": "top"}, "env.unknown-camera", "'top'"),
        ({"episode_length": 0}, "flag.out-of-range", "--env.episode_length"),
    ],
)
def test_bad_names_get_one_line_with_the_choices(
    flags: dict[str, Any], code: str, named: str
) -> None:
    with refuses(UsageError, code) as refused:
        Libero(LiberoConfig(**flags))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_cameras_have_lerobots_names_unless_given_others() -> None:
    assert list(Libero(LiberoConfig()).features()) == [
        "observation.images.image",
        "observation.images.image2",
        "observation.state",
        "observation.environment_state",
    ]
    renamed = LiberoConfig(camera_name="agentview", camera_name_mapping={"agentview_image": "top"})
    assert "observation.images.top" in Libero(renamed).features()
    pixels = Libero(LiberoConfig(obs_type=ObservationType.PIXELS))
    assert "observation.state" not in pixels.features()


def test_a_missing_package_gives_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refuses(MissingExtra, "extra.missing") as refused:
        libero_tasks.package_folder()
    assert "pip install 'proctor[libero]' && pip install --no-deps" in str(refused.value)


def test_half_of_the_second_command_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, find_spec = Libero(LiberoConfig()), importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "bddl" else find_spec(name)
    )
    with refuses(MissingExtra, "extra.missing") as refused:
        benchmark.preflight([])
    assert "bddl==" in str(refused.value)


def test_versions_that_cannot_run_libero_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"robosuite": "1.5.2", "mujoco": "3.3.0"}
    monkeypatch.setattr(versions, "version", installed.__getitem__)
    benchmark = Libero(LiberoConfig())
    with refuses(UsageError, "env.unsupported-version") as refused:
        benchmark.preflight([])
    assert "1.5.2" in str(refused.value)
    installed |= {"robosuite": "1.4.0", "mujoco": "3.10.1"}
    with refuses(UsageError, "env.unsupported-version") as refused:
        benchmark.preflight([])
    assert "3.10.1" in str(refused.value)


def test_versions_that_change_results_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Libero(LiberoConfig()).warnings == ()
    monkeypatch.setattr(versions, "version", {"robosuite": "1.4.0", "mujoco": "3.4.0"}.__getitem__)
    (note,) = Libero(LiberoConfig()).warnings
    assert "MuJoCo 3.4.0" in note
    assert "pip install mujoco==3.3.0" in note
