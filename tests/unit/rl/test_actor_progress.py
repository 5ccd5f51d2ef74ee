"""The progress line of a remote actor."""

from __future__ import annotations

import io

from rich.console import Console

from proctor.rl.actor.run import ActorProgress
from proctor.rl.link.links import InteractionMessage


def episode(step: int, reward: float, intervention_rate: float = 0.0) -> InteractionMessage:
    return InteractionMessage(reward, step, intervention_rate > 0, intervention_rate)


def test_it_shows_steps_episodes_reward_speed_and_interventions() -> None:
    console = Console(file=io.StringIO(), width=200)
    times = iter([10.0, 20.0])
    progress = ActorProgress(console, clock=lambda: next(times))
    progress.on_episode(episode(20, 1.0), pending=0)
    assert progress.text == "step 20  1 episode  reward 1"
    progress.on_episode(episode(70, 0.0, 0.5), pending=7)
    expected = "step 70  2 episodes  reward 0.5  5.0 steps/s  interventions 25%"
    assert progress.text == f"{expected}  7 transitions not yet stored"
    progress.close()
    assert progress.text in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_actor_without_episodes_leaves_no_line() -> None:
    console = Console(file=io.StringIO())
    ActorProgress(console).close()
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
