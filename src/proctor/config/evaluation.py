"""What one evaluation is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proctor.callbacks.wandb import WandbConfig
from proctor.config.base import RunConfig
from proctor.config.flags import path_of
from proctor.config.lerobot_evaluation import OF_EVALUATIONS
from proctor.config.sections import EvalSettings, SchedulerKind, VideoSettings
from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION
from proctor.lerobot_flags import LerobotFlag
from proctor.stats.rates import LEAST_ALPHA
from proctor.stats.stopping import parse_stop_rule


@dataclass
class EvalConfig(RunConfig):
    """One evaluation: also which run it is compared with, and who may watch."""

    foreign: ClassVar[Mapping[str, LerobotFlag]] = {**RunConfig.foreign, **OF_EVALUATIONS}
    first: ClassVar[str] = (
        "policy.path policy.type policy.device policy.n_action_steps rename_map env.type env.task "
        "env.task_ids env.id env.episode_length eval.n_episodes eval.episodes eval.batch_size "
        "eval.stop_when seed output_dir resume config_path video.episodes video.which live record "
        "against wandb.enable wandb.project"
    )

    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings, metadata=PRESENTATION)
    wandb: WandbConfig = field(default_factory=WandbConfig, metadata=PRESENTATION)
    job_name: str | None = field(
        default=None,
        metadata={"help": "stands for ENV_POLICY in the name of the default folder"} | PRESENTATION,
    )
    against: Path | None = field(
        default=None,
        metadata={
            "help": "a run to compare with: runs its episodes (its --env, --seed and "
            "--eval.n_episodes unless given) and stops once better or worse is shown"
        }
        | PRESENTATION,
    )
    alpha: float = field(
        default=0.05, metadata={"help": "level of the test of --against"} | PRESENTATION
    )

    record: Path | None = field(
        default=None,
        metadata={"help": "a folder to keep all episodes in, as a LeRobot dataset"} | PRESENTATION,
    )
    record_images: bool = field(
        default=True,
        metadata={"help": "false: --record keeps numbers only, and renders nothing for it"}
        | PRESENTATION,
    )
    live: bool = field(
        default=False,
        metadata={"help": "serve the report page while the run goes on"} | PRESENTATION,
    )
    live_host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to serve it on; other than this machine's own needs a token"}
        | PRESENTATION,
    )
    live_port: int = field(
        default=8642, metadata={"help": "port to serve it on; 0: any free one"} | PRESENTATION
    )

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before every planned episode has."""
        return self.against is not None or parse_stop_rule(self.eval.stop_when) is not None

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        super().validate()
        self.video.validate()
        if self.job_name is not None:
            path_of(f"00-00-00_{self.job_name}")
        if not 0 <= self.live_port <= 65535:
            raise UsageError(
                f"--live_port must be 0 to 65535, got {self.live_port}", code="flag.out-of-range"
            )
        if not LEAST_ALPHA <= self.alpha < 0.5:
            least = f"{LEAST_ALPHA:g}"
            raise UsageError(
                f"--alpha must be from {least} to below 0.5, got {self.alpha:g}",
                code="flag.out-of-range",
            )
        if self.may_stop:
            self._validate_stopping()
        if self.record is not None and self.eval.scheduler is SchedulerKind.LOCKSTEP:
            raise UsageError(
                "--record: lockstep records nothing; leave --eval.scheduler out",
                code="flag.conflict",
            )
        if self.cluster is not None and self.eval.scheduler is SchedulerKind.LOCKSTEP:
            raise UsageError(
                "--cluster: lockstep plays here only; leave --eval.scheduler out",
                code="flag.conflict",
            )
        if self.record is None and not self.record_images:
            raise UsageError("--record_images=false needs --record=DIR", code="flag.missing")

    def _validate_stopping(self) -> None:
        flag = "--against" if self.against is not None else "--eval.stop_when"
        if self.eval.scheduler is SchedulerKind.LOCKSTEP:
            raise UsageError(
                f"{flag} interleaves tasks, lockstep runs one after the other; "
                "leave --eval.scheduler out",
                code="flag.conflict",
            )
        if self.env.max_parallel_tasks > 0:
            raise UsageError(
                f"{flag} interleaves tasks, which --env.max_parallel_tasks="
                f"{self.env.max_parallel_tasks} does not allow; leave one of them out",
                code="flag.conflict",
            )
