"""The order of appended episodes, the ledger of a recording, and action noise."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from proctor.callbacks.action_noise import ActionNoise
from proctor.callbacks.dataset import LEDGER_FILE, AppendOrder, Ledger
from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.errors import RunFolderError
from proctor.features import ActionSpec
from proctor.runs.journal import staged_episode_path
from proctor.types import EpisodeKey, EpisodeSpec, Outcome, Task
from tests.refusals import refuses

TASKS = [Task("suite", i, f"task-{i}", "do it", 100, fps=10) for i in range(2)]
PLAN = [EpisodeSpec(task, index, 1000 + index) for task in TASKS for index in range(2)]
KEYS: list[EpisodeKey] = [spec.key for spec in PLAN]


def let_in(line: AppendOrder) -> list[EpisodeKey]:
    return [key for key, kept in line.pop_ready() if kept]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_episodes_come_in_the_order_of_the_plan_whenever_they_end(order: tuple[int, ...]) -> None:
    line, came = AppendOrder(PLAN, None), []
    for place in order:
        line.mark_ended(KEYS[place], kept=True)
        came += let_in(line)
    assert came == KEYS


def test_no_episode_overtakes_a_running_one() -> None:
    line = AppendOrder(PLAN, None)
    for key in KEYS[1:]:
        line.mark_ended(key, kept=True)
    assert let_in(line) == []
    line.mark_ended(KEYS[0], kept=False)
    assert let_in(line) == KEYS[1:]


def test_a_retry_of_a_task_comes_before_episodes_of_the_next_task() -> None:
    line = AppendOrder(PLAN, None)
    further = EpisodeSpec(TASKS[0], 2, 1002)
    line.add(further)
    for key in KEYS:
        line.mark_ended(key, kept=True)
    assert let_in(line) == KEYS[:2]
    line.mark_ended(further.key, kept=True)
    assert let_in(line) == [further.key, *KEYS[2:]]


def test_no_more_episodes_of_a_task_are_appended_than_its_capacity() -> None:
    line = AppendOrder(PLAN, {TASKS[0].key: 1, TASKS[1].key: 5})
    for key in KEYS:
        line.mark_ended(key, kept=True)
    assert let_in(line) == [KEYS[0], *KEYS[2:]]


def test_at_the_end_episodes_that_never_ended_are_skipped() -> None:
    line = AppendOrder(PLAN, None)
    line.mark_ended(KEYS[1], kept=True)
    line.mark_ended(KEYS[3], kept=False)
    assert line.pop_all_ended() == [(KEYS[1], True), (KEYS[3], False)]


def test_a_ledger_removes_episodes_that_are_not_in_the_dataset(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 0)
    for key in KEYS[:3]:
        ledger.add(key)
    ledger.close()
    with (tmp_path / LEDGER_FILE).open("ab") as file:
        file.write(b'["sui')  # cut short by a kill
    (tmp_path / staged_episode_path(KEYS[2])).mkdir(parents=True)  # was on its way in
    ledger = Ledger(tmp_path, 2)
    assert ledger.keys == KEYS[:2]
    ledger.add(KEYS[3])
    ledger.close()
    assert Ledger(tmp_path, 3).keys == [*KEYS[:2], KEYS[3]]
    with refuses(RunFolderError, "run.dataset-changed"):
        Ledger(tmp_path, 4)


def test_a_dataset_with_deleted_episodes_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 0)
    ledger.add(*KEYS[:3])
    ledger.close()
    with refuses(RunFolderError, "run.dataset-changed"):
        Ledger(tmp_path, 2)
    assert Ledger(tmp_path, 3).keys == KEYS[:3]  # it is as it was


def test_a_ledger_is_complete_after_partial_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: write(fd, content[:5]))
    ledger = Ledger(tmp_path, 0)
    ledger.add(*KEYS[:3])
    ledger.close()
    assert Ledger(tmp_path, 3).keys == KEYS[:3]


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / LEDGER_FILE).write_text('["suite",0,0]\nno\n')
    with refuses(RunFolderError, "run.damaged") as refused:
        Ledger(tmp_path, 1)
    assert f"{LEDGER_FILE} is damaged in line 2" in str(refused.value)


def test_only_complete_episodes_are_kept() -> None:
    assert [o for o in Outcome if EpisodeFilter.SUCCESS.keeps(o)] == [Outcome.SUCCESS]
    whole = [Outcome.SUCCESS, Outcome.FAILURE, Outcome.ENDED]
    assert [o for o in Outcome if EpisodeFilter.ALL.keeps(o)] == whole


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_fraction_of_noisy_episodes_holds_for_any_first_n(share: float) -> None:
    noise = ActionNoise(0.3, share)
    for n in range(1, 40):
        assert sum(noise.applies_to(i) for i in range(n)) == int(n * share)
    assert not any(ActionNoise(0.0, share).applies_to(i) for i in range(9))


def pushes(noise: ActionNoise, spec: EpisodeSpec, action: ActionSpec) -> np.ndarray:
    disturbance = noise.of(spec, action)
    assert disturbance is not None
    return np.stack([disturbance.noise_at(step) for step in range(60)])


def test_noise_comes_in_bursts_that_depend_on_the_episode_alone() -> None:
    action = ActionSpec(3, low=(-1.0, 0.0, 0.0), high=(1.0, 200.0, 1.0))
    noise = ActionNoise(0.3, dims=(0, 1))
    told = pushes(noise, PLAN[0], action)
    assert np.array_equal(told, pushes(noise, PLAN[0], action))
    assert not np.array_equal(told, pushes(noise, PLAN[1], action))
    assert not np.array_equal(told, pushes(noise, PLAN[2], action))
    assert not told[:10].any()
    assert not told[20:40].any()
    assert not told[:, 2].any()
    for burst in (told[10:20], told[40:50]):
        assert (burst == burst[0]).all()
    many = np.stack([pushes(noise, EpisodeSpec(TASKS[0], i, i), action)[10] for i in range(2000)])
    assert many.std(axis=0)[:2] == pytest.approx([0.3, 30.0], rel=0.1)
