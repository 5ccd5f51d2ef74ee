"""The evaluations that both sides run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

SEED = 1000

LEROBOTS_VIDEOS = 10
"""Number of episodes of a task that `lerobot-eval` records as video; it has no flag."""

SAME_ACTIONS = "same_actions"
"""A policy without a checkpoint: its actions are defined in fixed_actions.py."""

LIBERO_SIZE = 256
"""Image size in pixels; vla-eval has no other."""

LIBERO_CAMERAS = ("observation.images.image", "observation.images.image2")


class Peer(Enum):
    """The software that Proctor is compared with."""

    LEROBOT = "LeRobot"
    VLA_EVAL = "vla-eval"


AUTO = 0
"""Both sides choose the batch size by the same rule, 0.7 of the cores."""


@dataclass(frozen=True)
class Case:
    """One evaluation, and the target ratio."""

    benchmark: str
    task: str
    policy: str
    n_action_steps: int
    horizon: int
    n_episodes: int
    batch_size: int = 1
    video: bool = True
    target: float = 1.0
    env_flags: tuple[str, ...] = ()
    """More flags of the simulator; LeRobot and Proctor understand them alike."""
    peer: Peer = Peer.LEROBOT

    @property
    def name(self) -> str:
        """The case's name in the table."""
        video = "videos by default" if self.video else "no video"
        batch = "auto" if self.batch_size == AUTO else self.batch_size
        return (
            f"{self.benchmark} {self.policy.split('-')[0]}, n_action_steps={self.n_action_steps}, "
            f"{self.n_episodes} x {self.horizon} steps, batch {batch}, {video}"
        )

    @property
    def shared_flags(self) -> list[str]:
        """Flags that mean the same to LeRobot and Proctor, without the policy's."""
        return [
            f"--env.type={self.benchmark}",
            f"--env.task={self.task}",
            f"--env.episode_length={self.horizon}",
            *self.env_flags,
            f"--eval.n_episodes={self.n_episodes}",
            f"--eval.batch_size={self.batch_size}",
            f"--seed={SEED}",
        ]

    def checkpoint_flags(self, checkpoint: Path) -> list[str]:
        """Flags of the policy, if it is a checkpoint."""
        return [
            f"--policy.path={checkpoint}",
            f"--policy.n_action_steps={self.n_action_steps}",
            "--policy.device=cpu",
        ]


_METAWORLD = Case("metaworld", "push-v3", "act-metaworld", 20, horizon=20, n_episodes=4)
_REPLAN = replace(_METAWORLD, n_action_steps=1, horizon=5, n_episodes=10)
_PUSHT = Case("pusht", "PushT-v0", "act-pusht", 20, horizon=300, n_episodes=10, target=4.0)
_PUSHT_REPLAN = replace(_PUSHT, n_action_steps=1, horizon=40, n_episodes=4, target=1.0)
_DIFFUSION = Case("pusht", "PushT-v0", "diffusion-pusht", 8, horizon=40, n_episodes=4)
_LIBERO = Case(
    "libero", "libero_spatial", "act-libero", 20, horizon=40, n_episodes=2,
    env_flags=(
        "--env.task_ids=[0]",
        f"--env.observation_height={LIBERO_SIZE}",
        f"--env.observation_width={LIBERO_SIZE}",
    ),
)  # fmt: skip

CASES: dict[str, list[Case]] = {
    "metaworld": [
        replace(_METAWORLD, horizon=100, n_episodes=10, target=12.0),
        replace(_METAWORLD, horizon=100, n_episodes=10, video=False, target=8.0),
    ],
    "pusht": [_PUSHT, replace(_PUSHT, batch_size=2, video=False, target=1.0), _PUSHT_REPLAN],
    "replan": [replace(_REPLAN, target=1.5), replace(_REPLAN, video=False)],
    "diffusion": [_DIFFUSION, replace(_DIFFUSION, batch_size=2, video=False)],
    "batch": [replace(_METAWORLD, batch_size=n) for n in (AUTO, 1, 2)],
    "libero": [_LIBERO, replace(_LIBERO, video=False)],
    "vla": [replace(_LIBERO, policy=SAME_ACTIONS, video=False, peer=Peer.VLA_EVAL)],
}

STARTS = [replace(_METAWORLD, horizon=1, n_episodes=n, batch_size=n, video=False) for n in (1, 2)]
"""One step, to measure when it is done."""
