"""Config of ``proctor eval``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from proctor.benchmarks.perturbations import ALL, DIMENSIONS, LEVELS
from proctor.benchmarks.perturbations.selection import check_levels, parse_dimensions
from proctor.callbacks.wandb import WandbConfig
from proctor.config.base import RunConfig
from proctor.config.flags.parsing import path_of
from proctor.config.sections.evaluation import EvalSettings, SchedulerKind, VideoSettings
from proctor.errors import UsageError
from proctor.fingerprint import NAME_LIST, PRESENTATION
from proctor.settings import setting
from proctor.stats.rates import LEAST_ALPHA
from proctor.stats.stopping import parse_stop_rule


@dataclass
class EvalConfig(RunConfig):
    """Config of an evaluation: a run, with videos, a reference run, recording and a live page."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Run folder": "job_name",
        "Comparison with a reference run": "against alpha",
        "Recording": "record record_images",
        "Robustness": "perturb perturb_levels",
        "Live page": "live live_host live_port",
    }

    foreign: ClassVar[tuple[str, ...]] = (*RunConfig.foreign, "evaluation")
    first: ClassVar[str] = (
        "policy.path policy.type policy.device policy.n_action_steps rename_map env.type env.task "
        "env.task_ids env.id eval.n_episodes eval.episodes eval.batch_size "
        "eval.stop_when seed output_dir resume config_path video.episodes video.which live record "
        "perturb against wandb.enable wandb.project"
    )

    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings, metadata=PRESENTATION)
    wandb: WandbConfig = field(default_factory=WandbConfig, metadata=PRESENTATION)
    job_name: str | None = setting(
        None, "name in the default run folder (default: ENV_POLICY)", PRESENTATION
    )
    against: Path | None = setting(
        None,
        "run folder to compare with: takes its --env, --seed and --eval.n_episodes, and "
        "stops when one policy is significantly better (default: no comparison)",
        PRESENTATION,
    )
    alpha: float = setting(
        0.05,
        "significance level of the test of --against, above 0 and below 0.5",
        PRESENTATION,
        least=LEAST_ALPHA,
        below=0.5,
    )

    perturb: str | None = setting(
        None,
        f"also run each episode perturbed, paired: {', '.join(DIMENSIONS)}; {ALL} (default: "
        "clean episodes only)",
        PRESENTATION,
        NAME_LIST,
    )
    perturb_levels: list[int] = setting(
        list(LEVELS),
        "strengths of --perturb: 1 (weak), 2, 3 (strong), as 1,3 (default: 1,2,3)",
        PRESENTATION,
    )

    record: Path | None = setting(
        None,
        "record all episodes as a LeRobot dataset in this folder (default: no recording)",
        PRESENTATION,
    )
    record_images: bool = setting(
        True,
        "include camera images in --record; false: record states and actions only",
        PRESENTATION,
    )
    live: bool = setting(
        False, "serve the report page during the run, at --live_host and --live_port", PRESENTATION
    )
    live_host: str = setting(
        "127.0.0.1",
        "IP address that --live serves on; other machines need the printed token",
        PRESENTATION,
    )
    live_port: int = setting(
        8642, "TCP port that --live serves on; 0: any free port", PRESENTATION, least=0, most=65535
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval.n_episodes is None:  # a copy: a training shares its settings
            self.eval = replace(self.eval, n_episodes=self.env.n_episodes)

    @property
    def may_stop(self) -> bool:
        """Whether the run may stop before all planned episodes are run."""
        return self.against is not None or parse_stop_rule(self.eval.stop_when) is not None

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        parse_dimensions(self.perturb)
        check_levels(self.perturb_levels)
        if self.job_name is not None:
            path_of(f"00-00-00_{self.job_name}", "--job_name")
        if self.may_stop:
            self._validate_stopping()
        if self.record is not None and self.eval.scheduler is SchedulerKind.LOCKSTEP:
            raise UsageError(
                "--record: lockstep records nothing; leave --eval.scheduler out",
                code="flag.conflict",
            )
        if self.cluster is not None and self.eval.unseen:
            raise UsageError(
                "--eval.unseen resets simulators here before the run; leave --cluster out",
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
