"""LIBERO-plus: its table, instructions, camera arithmetic, noise, and the flags that select."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.checks import check_task_ids
from proctor.benchmarks.libero.camera_pose import CameraPose
from proctor.benchmarks.libero.problem import Goal, Problem, Relation
from proctor.benchmarks.libero.prompt import Prompt
from proctor.benchmarks.libero_plus import benchmark as libero_plus
from proctor.benchmarks.libero_plus.benchmark import LiberoPlus, LiberoPlusConfig
from proctor.benchmarks.libero_plus.camera import View, moved_camera
from proctor.benchmarks.libero_plus.noise import corrupted, noise_key
from proctor.benchmarks.libero_plus.package import plus_assets
from proctor.benchmarks.libero_plus.selection import chosen_kinds, chosen_levels, kind_of
from proctor.benchmarks.libero_plus.sim import init_pose
from proctor.benchmarks.libero_plus.tasks import Dimension, PlusTask, plus_tasks
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.errors import PluginError, UsageError
from tests.refusals import refuses

ROWS = [task for rows in plus_tasks().values() for task in rows]
FRONT = CameraPose((1.0, 0.0, 0.8), (1.0, 0.0, 0.0, 0.0))


def benchmark(**flags: Any) -> LiberoPlus:
    return LiberoPlus(LiberoPlusConfig(**flags))


def first(dimension: Dimension, **wanted: Any) -> PlusTask:
    tasks = (task for task in ROWS if task.dimension is dimension)
    return next(t for t in tasks if all(getattr(t, key) == value for key, value in wanted.items()))


def test_the_table_has_the_published_numbers_of_tasks() -> None:
    assert {suite: len(rows) for suite, rows in plus_tasks().items()} == {
        "libero_spatial": 2402,
        "libero_object": 2518,
        "libero_goal": 2591,
        "libero_10": 2519,
    }
    assert Counter(task.dimension.value for task in ROWS) == {
        "camera": 1599,
        "robot": 1550,
        "language": 1537,
        "noise": 1601,
        "layout": 1525,
        "light": 1142,
        "background": 1076,
    }
    assert sum(task.level is None for task in ROWS) == 121
    base = Counter(kind_of(task).value for task in ROWS if not task.needs_new_assets)
    assert base == {"camera": 1599, "robot": 1550, "language": 1537, "noise": 1601, "moved": 696}
    assert base.total() == 6983


def test_every_task_perturbs_one_thing() -> None:
    for task in ROWS:
        changed = {
            Dimension.CAMERA: task.view != View(),
            Dimension.ROBOT: task.init_pose > 0,
            Dimension.NOISE: task.noise > 0,
            Dimension.LANGUAGE: task.paraphrase is not None,
        }
        assert [dim for dim, yes in changed.items() if yes] == (
            [task.dimension] if task.dimension in changed else []
        )


def test_the_clean_prompt_never_has_parameters() -> None:
    told = {task.instruction(Prompt.CLEAN) for task in ROWS if task.paraphrase is None}
    assert len(told) == 40
    assert not any(character.isdigit() for text in told for character in text)


def test_the_upstream_prompt_is_the_file_name() -> None:
    task = first(Dimension.ROBOT, suite="libero_spatial", base_id=0)
    base = "pick up the black bowl between the plate and the ramekin and place it on the plate"
    assert task.instruction(Prompt.CLEAN) == base
    assert task.instruction(Prompt.UPSTREAM) == (
        f"{base} view 0 0 100 0 0 initstate {task.init_pose}"
    )


def test_a_language_task_has_its_paraphrase_unless_that_is_no_instruction() -> None:
    whole = first(Dimension.LANGUAGE)
    assert whole.instruction(Prompt.CLEAN) == whole.instruction(Prompt.UPSTREAM) == whole.paraphrase
    preface = "here are 20 variations of the given instruction while maintaining its core meaning"
    broken = first(Dimension.LANGUAGE, paraphrase=preface)
    assert (broken.suite, broken.task_id) == ("libero_10", 1400)
    assert broken.instruction(Prompt.UPSTREAM) == preface
    assert broken.instruction(Prompt.CLEAN) == (
        "put both the alphabet soup and the cream cheese box in the basket"
    )


@pytest.mark.parametrize(
    ("view", "position", "quaternion"),
    [
        (View(), (1, 0, 0.8), (1, 0, 0, 0)),
        (View(horizontal=90), (0, 1, 0.8), (0.7071, 0, 0, 0.7071)),
        (View(vertical=30), (0.866, 0, 1.3), (0.9659, 0, -0.2588, 0)),
        (View(scale=1.5), (1.5, 0, 0.8), (1, 0, 0, 0)),
        (View(turn=60), (1, 0, 0.8), (0.866, 0, 0, 0.5)),
        (View(tilt=60), (1, 0, 0.8), (0.866, 0, -0.5, 0)),
        # 0.866 and 1.3 are rounded first: 0.866 cos 60 = 0.433, 0.866 sin 60 = 0.74998...
        (View(horizontal=60, vertical=30), (0.433, 0.75, 1.3), (0.8365, 0.1294, -0.2241, 0.483)),
    ],
)
def test_the_camera_moves_as_computed_by_hand(view: View, position: Any, quaternion: Any) -> None:
    moved = moved_camera(FRONT, view)
    np.testing.assert_allclose(moved.position, position, atol=1e-12)
    np.testing.assert_allclose(moved.quaternion, quaternion, atol=1e-12)


def test_the_unperturbed_camera_is_rounded_too() -> None:
    agentview = CameraPose(
        (0.6586131746834771, 0.0, 1.6103500240372423), (0.638, 0.305, 0.305, 0.638)
    )
    assert moved_camera(agentview, View()).position == (0.6586, 0.0, 1.6104)


def test_robot_poses_are_those_written_in_libero_plus() -> None:
    written = {
        1: [0.02097405, -0.16687568, 0.02734903, -2.38028663, -0.00988726, 2.21686563, 0.85208136],
        2: [0.03347899, -0.181518, 0.02366894, -2.46481386, -0.02031725, 2.2373077, 0.70193217],
        500: [-0.11827633, -0.04802337, 0.42756544, -2.2644154, -0.01062499, 2.18628575, 0.7065925],
    }
    for number, pose in written.items():
        assert init_pose(number).tolist() == pose


@pytest.mark.parametrize("number", [3, 13, 21, 33, 43])
def test_noise_repeats_by_its_key_and_changes_the_image(number: int) -> None:
    image = np.random.RandomState(0).randint(0, 256, (48, 48, 3)).astype(np.uint8)
    once, again = (corrupted(image, number, np.random.RandomState(5)) for _ in range(2))
    assert once.dtype == np.uint8
    assert once.shape == image.shape
    np.testing.assert_array_equal(once, again)
    assert (once != image).mean() > 0.5


def test_the_noise_key_differs_by_episode_task_and_step() -> None:
    keys = {noise_key(*where) for where in np.ndindex(3, 4, 5, 6)}
    assert len(keys) == 3 * 4 * 5 * 6


def test_kinds_and_levels_select() -> None:
    tasks = benchmark(task="libero_goal", perturbation="camera,moved", difficulty="1-2,4").tasks()
    assert {task.suite for task in tasks} == {"libero_goal@camera", "libero_goal@layout"}
    assert {task.perturbation.level for task in tasks if task.perturbation} == {1, 2, 4}
    assert len(benchmark(perturbation="base_assets").tasks()) == 6983
    assert len(benchmark().tasks()) == 10_030
    assert chosen_kinds("layout") == chosen_kinds("moved,added")
    assert chosen_levels(None) is None


def test_paired_adds_each_clean_task_once() -> None:
    flags: dict[str, Any] = {"task": "libero_object", "perturbation": "robot", "difficulty": "5"}
    alone, paired = benchmark(**flags).tasks(), benchmark(**flags, paired=True).tasks()
    clean = [task for task in paired if task.perturbation is None]
    assert [task for task in paired if task.perturbation is not None] == alone
    assert {task.perturbation.clean_key for task in alone if task.perturbation} == {
        task.key for task in clean
    }
    plan = benchmark(**flags, paired=True)
    specs = [plan.spec(task, 0, 7) for task in paired]
    assert {(spec.seed, spec.init_state) for spec in specs} == {(7, 0)}


def test_clean_tasks_have_other_ids_than_the_selected_perturbed_ones() -> None:
    plan = benchmark(task="libero_goal", task_ids=[577], paired=True)
    assert [task.key for task in plan.tasks()] == [("libero_goal", 7), ("libero_goal@robot", 577)]
    check_task_ids(plan, [577])
    with refuses(PluginError, "plugin.contract-violation"):
        check_task_ids(plan, [7])


def test_one_episode_a_task_is_the_default() -> None:
    def episodes(**flags: Any) -> int | None:
        settings = {"policy.type": "random", "env.type": "libero_plus", **flags}
        return build(EvalConfig, settings).eval.n_episodes

    assert episodes() == 1
    assert episodes(**{"eval.n_episodes": "3"}) == 3
    assert episodes(**{"env.type": "libero"}) == 50


def test_wrong_selections_are_refused() -> None:
    with refuses(UsageError, "flag.invalid-value"):
        benchmark(perturbation="camra")
    for text in ("0", "2-7", "3-1", "hard"):
        with refuses(UsageError, "flag.invalid-value"):
            benchmark(difficulty=text)
    with refuses(UsageError, "env.unknown-task"):
        benchmark(task="libero_90")
    with refuses(UsageError, "env.unknown-task"):
        benchmark(task="libero_goal", task_ids=[0], perturbation="noise")


def test_a_task_without_an_expert_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = benchmark(task="libero_goal", task_ids=[402])
    hard = Problem({}, {}, (Goal(Relation.OPEN, "microwave_1"),), open_at_first=frozenset())
    monkeypatch.setattr(plan, "_problem", lambda task: hard)
    with refuses(UsageError, "env.no-expert") as refused:
        plan.expert(*plan.tasks())
    assert len(str(refused.value)) < 300  # and not the ids of a thousand other tasks


def test_tasks_whose_files_or_assets_are_missing_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libero_plus, "package_folder", lambda: None)
    with refuses(UsageError, "extra.missing") as refused:
        benchmark().preflight(())
    assert "3,743 of 10,030" in str(refused.value)
    monkeypatch.setattr(libero_plus, "package_folder", lambda: tmp_path)
    with refuses(UsageError, "env.missing-assets") as refused:
        benchmark().preflight(())
    assert "3,047 of 10,030" in str(refused.value)


def test_the_unpacked_zip_is_found_at_or_above_its_folder(tmp_path: Path) -> None:
    assert plus_assets(tmp_path) is None
    (tmp_path / "assets" / "new_objects").mkdir(parents=True)
    assert plus_assets(tmp_path) == plus_assets(tmp_path / "assets") == tmp_path / "assets"
