"""A person's verdict by keys, and a simulated scene's."""

from __future__ import annotations

from proctor.control.trials.verdicts import (
    Briefing,
    PersonJudge,
    Ruling,
    SceneJudge,
    TrialSignal,
    Verdict,
)
from tests.unit.control.trial_robots import ReachScene


class Person:
    """Presses keys in turn and remembers what was said."""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)
        self.heard: list[str] = []
        self.judge = PersonJudge(self._next, self.heard.append)

    def _next(self) -> str | None:
        return self.keys.pop(0) if self.keys else None

    def verdict(self) -> Verdict | None:
        self.judge.begin()
        self.judge.end()
        verdict = None
        while verdict is None and self.keys:
            verdict = self.judge.poll_verdict()
        return verdict


def test_enter_confirms_a_verdict() -> None:
    assert Person("s").verdict() is None
    assert Person("s", "enter").verdict() == Verdict(Ruling.SUCCESS, 1.0)
    assert Person("f", "enter").verdict() == Verdict(Ruling.FAILURE, 0.0)


def test_a_wrong_key_can_be_corrected_before_enter() -> None:
    assert Person("s", "f", "enter").verdict() == Verdict(Ruling.FAILURE, 0.0)


def test_enter_alone_is_no_verdict() -> None:
    assert Person("enter", "x", "enter").verdict() is None


def test_a_digit_is_a_partial_score() -> None:
    assert Person("7", "enter").verdict() == Verdict(Ruling.FAILURE, 0.7)
    assert Person("0", "enter").verdict() == Verdict(Ruling.FAILURE, 0.0)


def test_a_reason_may_contain_the_letters_of_verdicts() -> None:
    keys = ("f", "t", *"slipsx", "left", "space", *"off", "enter", "enter")
    assert Person(*keys).verdict() == Verdict(Ruling.FAILURE, 0.0, "slips off")


def test_void_redo_and_quit() -> None:
    assert Person("v", "enter").verdict() == Verdict(Ruling.VOID)
    assert Person("r", "enter").verdict() == Verdict(Ruling.REDO)
    assert Person("q", "enter").verdict() == Verdict(Ruling.QUIT)
    assert Person("escape", "enter").verdict() == Verdict(Ruling.QUIT)


def test_keys_during_a_trial() -> None:
    assert Person().judge.poll_trial() is None
    assert Person("x").judge.poll_trial() is None
    assert Person("space").judge.poll_trial() is TrialSignal.END
    assert Person("q").judge.poll_trial() is TrialSignal.QUIT


def test_a_verdict_during_the_trial_only_needs_confirmation() -> None:
    person = Person("s", "enter")
    person.judge.begin()
    assert person.judge.poll_trial() is TrialSignal.END
    person.judge.end()
    assert person.judge.poll_verdict() == Verdict(Ruling.SUCCESS, 1.0)


def test_start_waits_for_a_key() -> None:
    assert Person().judge.poll_start() is None
    assert Person("s").judge.poll_start() is None
    assert Person("enter").judge.poll_start() is True
    assert Person("space").judge.poll_start() is True
    assert Person("q").judge.poll_start() is False


def test_a_briefing_says_whether_the_scene_is_new() -> None:
    person = Person()
    person.judge.brief(Briefing(1, 8, 1, is_new_scene=True, instruction="pick the cube"))
    first = list(person.heard)
    person.judge.brief(Briefing(2, 8, 1, is_new_scene=False, instruction="pick the cube"))
    assert first[1] != person.heard[len(first) + 1]
    assert "pick the cube" in first[0]


def test_a_scene_ends_a_trial_by_success_and_remembers_it() -> None:
    scene = ReachScene()
    judge = SceneJudge(scene)
    judge.begin()
    assert judge.poll_start() is True
    assert judge.poll_trial() is None
    scene.done = True
    assert judge.poll_trial() is TrialSignal.END
    scene.done = False
    judge.end()
    assert judge.poll_verdict() == Verdict(Ruling.SUCCESS)
    judge.begin()
    judge.end()
    assert judge.poll_verdict() == Verdict(Ruling.FAILURE)
