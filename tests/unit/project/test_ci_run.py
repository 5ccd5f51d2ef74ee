"""`.ci/run` itself, in a project whose Makefile only prints its targets and environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[3] / ".ci" / "run"
RATE = "success 97.0% [91.5, 99.0] n=100"
TRAINED = "success 98.3% [91.1, 99.7] n=60"
ALWAYS = ["demo", "tutorial", "check", "test-fast"]
SUITES = [
    "test", "dist", "test-sim", "test-heavy", "test-vla", "test-ray", "test-browser", "test-docs",
    "test-extras", "fuzz-decoders",
]  # fmt: skip
TARGETS = [*ALWAYS, *SUITES]


class Project:
    """A repository with `.ci/run`, and a folder for temporary files."""

    def __init__(self, root: Path) -> None:
        self.root, self.temporary = root / "project", root / "tmp"
        (self.root / ".ci").mkdir(parents=True)
        self.temporary.mkdir()
        shutil.copy(RUN, self.root / ".ci" / "run")

    def commit(
        self, *, demo: str = RATE, tutorial: str = TRAINED, failing: str = "", slow: str = ""
    ) -> None:
        printed = {"demo": demo, "tutorial": tutorial}
        targets = (
            f"{name}:\n\t@echo 'target {name}'; env; ls -A $$HOME | sed 's/^/home: /'\n"
            f"\t@printf '%b\\n' '{printed.get(name, '')}'; test {name} != '{failing}'\n"
            f"\t@test {name} != '{slow}' || sleep 600\n"
            for name in TARGETS
        )
        (self.root / "Makefile").write_text("".join(targets))
        git = ["git", "-C", str(self.root), "-c", "user.name=x", "-c", "user.email=x@localhost"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "all"], check=True)

    def ci(self, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(self.root / ".ci" / "run")]
        ours = {name: value for name, value in os.environ.items() if not of_pip(name)}
        environment = ours | {"TMPDIR": str(self.temporary)} | variables
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert not list(self.temporary.iterdir()), "something was left behind"
        return ended


def of_pip(name: str) -> bool:
    """Return whether `.ci/run` passes this variable on: these tests see its own when run by it."""
    return name.upper().startswith("PIP_") or name.upper().endswith("_PROXY")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def asked_for(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("target ")]


def test_all_targets_run_in_a_clone_isolated_from_this_machine(
    project: Project, tmp_path: Path
) -> None:
    settings = tmp_path / "config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True)
    settings.touch()
    project.commit()
    (project.root / "Makefile").write_text("demo:\n\t@echo not committed\n")
    ended = project.ci(
        SECRET="of this machine",
        PYTHONPATH="/somewhere",
        PIP_INDEX_URL="scheme://index/?key=abc==",
        https_proxy="scheme://proxy",
        XDG_CONFIG_HOME=str(tmp_path / "config"),
    )
    assert ended.returncode == 0, ended.stderr
    asked = asked_for(ended)
    assert asked[: len(ALWAYS)] == ALWAYS
    assert sorted(asked[len(ALWAYS) :]) == sorted([*SUITES, "test-heavy", "test-heavy"])
    assert "not run" not in ended.stdout
    assert "note: only what is committed is tested" in ended.stdout
    seen = set(ended.stdout.splitlines())
    assert {
        "PIP_INDEX_URL=scheme://index/?key=abc==",
        "https_proxy=scheme://proxy",
        f"PIP_CONFIG_FILE={settings}",
    } <= seen
    assert not any(line.startswith(("SECRET", "PYTHONPATH", "XDG_", "home: ")) for line in seen)
    (home,) = {line for line in seen if line.startswith("HOME=")}
    assert home.startswith(f"HOME={project.temporary}")
    (temporary,) = {line for line in seen if line.startswith("TMPDIR=")}
    assert temporary.startswith(f"TMPDIR={project.temporary}/"), "what is left there would stay"


def test_an_unexpected_demo_rate_fails(project: Project) -> None:
    project.commit(demo="success 96.0% [90.2, 98.4] n=100")
    ended = project.ci()
    assert ended.returncode == 1
    assert asked_for(ended) == ["demo"]
    assert f"make demo did not print: {RATE}" in ended.stdout


@pytest.mark.parametrize(
    "printed", ["success 88.3% [77.8, 94.2] n=60", "no rate", f"the {TRAINED} of another line"]
)
def test_a_tutorial_whose_policy_fails_is_a_failure(project: Project, printed: str) -> None:
    project.commit(tutorial=printed)
    ended = project.ci()
    assert ended.returncode == 1
    assert asked_for(ended) == ["demo", "tutorial"]
    assert "make tutorial: the trained policy has" in ended.stdout


def test_the_first_rate_of_the_tutorial_counts_and_the_expert_is_second(project: Project) -> None:
    project.commit(tutorial=f"success 20.0% [11.8, 31.8] n=60\\n{TRAINED}")
    assert asked_for(project.ci()) == ["demo", "tutorial"]


@pytest.mark.parametrize("failing", TARGETS)
def test_a_failing_target_stops_the_run(project: Project, failing: str) -> None:
    project.commit(failing=failing)
    ended = project.ci()
    assert ended.returncode != 0
    assert asked_for(ended)[-1] == failing


def test_a_suite_that_would_take_too_long_is_stopped_and_named(project: Project) -> None:
    project.commit(slow="test")
    ended = project.ci(CI_LAST_S="5", CI_LIMIT_S="5")
    assert ended.returncode == 0
    if "test" in asked_for(ended):  # else this machine needed 5 s to come there
        assert "== stopped for lack of time, no result: make test" in ended.stdout.splitlines()


def test_on_a_slow_machine_no_suite_begins_after_the_limit(project: Project) -> None:
    project.commit()
    ended = project.ci(CI_LIMIT_S="0")
    assert ended.returncode == 0
    assert asked_for(ended) == ALWAYS
    named = {line.split("make ")[1].split()[0] for line in ended.stdout.splitlines()
             if line.startswith("== not run")}  # fmt: skip
    assert named == set(SUITES)
