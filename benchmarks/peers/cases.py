"""The work that both sides do, case by case."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEROBOTS_VIDEOS = 10
"""How many episodes of a task `lerobot-eval` films; no flag changes it."""


@dataclass(frozen=True)
class Case:
    """One evaluation, and how much faster we mean to be."""

    benchmark: str
    task: str
    policy: str
    n_action_steps: int
    horizon: int
    n_episodes: int
    batch_size: int = 1
    video: bool = True
    target: float = 1.0

    @property
    def name(self) -> str:
        """The case in words, as the table shows it."""
        video = "videos by default" if self.video else "no video"
        return (
            f"{self.benchmark} {self.policy.split('-')[0]}, n_action_steps={self.n_action_steps}, "
            f"{self.n_episodes} x {self.horizon} steps, batch {self.batch_size}, {video}"
        )

    @property
    def shared_flags(self) -> list[str]:
        """The flags that mean the same to both."""
        return [
            f"--env.type={self.benchmark}",
            f"--env.task={self.task}",
            f"--env.episode_length={self.horizon}",
            f"--eval.n_episodes={self.n_episodes}",
            f"--eval.batch_size={self.batch_size}",
            f"--policy.n_action_steps={self.n_action_steps}",
            "--policy.device=cpu",
            "--seed=1000",
        ]


_METAWORLD = Case("metaworld", "push-v3", "act-metaworld", 20, horizon=20, n_episodes=4)
_REPLAN = replace(_METAWORLD, n_action_steps=1, horizon=5, n_episodes=10)
_PUSHT = Case("pusht", "PushT-v0", "act-pusht", 20, horizon=300, n_episodes=10, target=4.0)
_PUSHT_REPLAN = replace(_PUSHT, n_action_steps=1, horizon=40, n_episodes=4, target=1.0)
_DIFFUSION = Case("pusht", "PushT-v0", "diffusion-pusht", 8, horizon=40, n_episodes=4)

CASES: dict[str, list[Case]] = {
    "metaworld": [
        replace(_METAWORLD, horizon=60, target=12.0),
        replace(_METAWORLD, target=12.0),
        replace(_METAWORLD, video=False, target=8.0),
    ],
    "pusht": [_PUSHT, replace(_PUSHT, batch_size=2, video=False), _PUSHT_REPLAN],
    "replan": [replace(_REPLAN, target=1.5), replace(_REPLAN, video=False)],
    "diffusion": [_DIFFUSION, replace(_DIFFUSION, batch_size=2, video=False)],
    "batch": [replace(_METAWORLD, batch_size=2)],
}

STARTS = [replace(_METAWORLD, horizon=1, n_episodes=n, batch_size=n, video=False) for n in (1, 2)]
"""One step, to see when it is done."""
