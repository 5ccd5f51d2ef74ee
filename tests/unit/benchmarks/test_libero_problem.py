"""Reading what a LIBERO task asks for from its BDDL file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from proctor.benchmarks.libero.expert import has_skills
from proctor.benchmarks.libero.problem import Goal, Problem, Relation, read_problem
from proctor.benchmarks.libero.scene import COLUMNS, ROWS, Scene

_TASK = """
(define (problem LIBERO_Kitchen_Tabletop_Manipulation)
  (:domain robosuite)
  (:language close it)
  (:regions
    (init_region (:target kitchen_table) (:ranges ((0 0 1 1))) (:yaw_rotation ((0.0 0.0))))
    (front_region (:target kitchen_table) (:ranges ((0 0 1 1))))
    (bottom_region (:target white_cabinet_1))
    (left_region (:target bowl_drainer_1))
  )
  (:fixtures kitchen_table - kitchen_table white_cabinet_1 - white_cabinet)
  (:objects akita_black_bowl_1 akita_black_bowl_2 - akita_black_bowl plate_1 - plate)
  (:init (On akita_black_bowl_1 kitchen_table_init_region) {init})
  (:goal (And {goal}))
)
"""


def problem_of(folder: Path, goal: str, init: str = "") -> Problem:
    path = folder / "task.bddl"
    path.write_text(_TASK.format(goal=goal, init=init))
    return read_problem(path)


def test_goals_things_and_regions_are_read_and_what_the_scene_lacks_is_left_out(
    tmp_path: Path,
) -> None:
    goal = "(Close white_cabinet_1_bottom_region) (On plate_1 kitchen_table_front_region)"
    problem = problem_of(tmp_path, goal)
    assert problem.goals == (
        Goal(Relation.CLOSE, "white_cabinet_1_bottom_region"),
        Goal(Relation.ON, "plate_1", "kitchen_table_front_region"),
    )
    assert problem.part_names == (
        "akita_black_bowl_1",
        "akita_black_bowl_2",
        "plate_1",
        "white_cabinet_1",
        "kitchen_table_front_region",
        "white_cabinet_1_bottom_region",
    )
    assert problem.category_of["akita_black_bowl_2"] == "akita_black_bowl"


def test_the_expert_fills_a_drawer_only_if_it_stands_open(tmp_path: Path) -> None:
    goal = "(In akita_black_bowl_1 white_cabinet_1_bottom_region)"
    assert not has_skills(problem_of(tmp_path, goal))
    assert has_skills(problem_of(tmp_path, goal, init="(Open white_cabinet_1_bottom_region)"))


def test_a_scene_keeps_what_it_saw_when_the_array_is_written_again(tmp_path: Path) -> None:
    scene = Scene(problem_of(tmp_path, "(On akita_black_bowl_1 plate_1)"))
    table = np.zeros((ROWS, COLUMNS))
    scene.update(table)
    seen = scene.hand.position
    table[0, :3] = 1.0
    assert (seen == 0.0).all()
