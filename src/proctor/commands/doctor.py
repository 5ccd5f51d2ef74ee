"""``proctor doctor``: what works on this machine, and the command that mends what does not."""

from __future__ import annotations

from proctor.errors import UsageError

EXIT_BROKEN = 1


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    if words == ["--help"]:
        print("proctor doctor: tries all ways to render, opens every benchmark that is installed,")
        print("checks cores, memory, GPU, disk and versions, and names the command that mends each")
        print("problem; exit code 1 when something is broken")
        return 0
    if words:
        raise UsageError(f"doctor takes no arguments, got {words[0]!r}")
    from proctor.evaluation.smoke_test import smoke_test_benchmarks
    from proctor.system.doctor import DoctorLevel, run_checks

    findings = []
    for finding in run_checks(smoke_test_benchmarks):
        print(finding, flush=True)
        findings.append(finding)
    return EXIT_BROKEN if any(finding.level is DoctorLevel.FAIL for finding in findings) else 0
