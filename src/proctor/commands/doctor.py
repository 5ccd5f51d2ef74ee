"""``proctor doctor``: what works on this machine, and the command that mends what does not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from proctor.config.flags.command import CommandConfig, run_command

EXIT_BROKEN = 1


@dataclass(kw_only=True)
class DoctorCommand(CommandConfig):
    """Check rendering, benchmarks, cores, memory, GPU, disk and versions.

    Tries every GL backend and opens every installed benchmark. Each problem is printed with the
    command that mends it.

    Exit code 1: something is broken.
    """

    def run(self) -> int:
        """Print every finding as it is made and return the exit code."""
        from proctor.benchmarks.mujoco.warp_doctor import warp_findings
        from proctor.evaluation.smoke_test import smoke_test_benchmarks
        from proctor.system.platform.doctor import DoctorLevel, run_checks

        findings = []
        for finding in chain(run_checks(smoke_test_benchmarks), warp_findings()):
            print(finding, flush=True)
            findings.append(finding)
        return EXIT_BROKEN if any(f.level is DoctorLevel.FAIL for f in findings) else 0


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(DoctorCommand, "proctor doctor", words)
