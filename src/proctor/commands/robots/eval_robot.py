"""``proctor eval --robot.type=NAME``: blind trials of one or several policies on a robot."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.shared.arguments import choose_config, parse_flags
from proctor.errors import RobotError, UsageError, exit_code_of, strip_control_codes
from proctor.permissions import permission_flags

if TYPE_CHECKING:
    from proctor.commands.evaluation.eval_several import Variant
    from proctor.config.flags.merging import EarlierRun, Settings
    from proctor.config.robot_evaluation import RobotEvalConfig
    from proctor.control.loop.session import ControlSession
    from proctor.control.terminal.keys import KeyHub
    from proctor.control.trials.records import PolicyUnderTest
    from proctor.control.trials.verdicts import Judge
    from proctor.robots.base import Robot

SESSION_FILE = "trials.json"
"""The settings of all policies of a session, beside their run folders."""
EXIT_ERRORED = 1


def is_for_robot(words: Sequence[str]) -> bool:
    """Return whether the words ask for trials on a robot: by a flag, a file or a resumed folder."""
    from proctor.config.evaluation import EvalConfig
    from proctor.config.robot_evaluation import RobotEvalConfig

    if choose_config((EvalConfig, RobotEvalConfig), words) is RobotEvalConfig:
        return True
    folder = next((w.partition("=")[2] for w in words if w.startswith("--output_dir=")), "")
    resumed = any(word in ("--resume", "--resume=true") for word in words)
    return resumed and bool(folder) and (Path(folder).expanduser() / SESSION_FILE).is_file()


def evaluate_on_robot(words: list[str], usage: str) -> int:
    """Run the command and return its exit code."""
    from proctor.commands.evaluation.eval_several import variants_of
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.robot_evaluation import RobotEvalConfig

    given = parse_flags(RobotEvalConfig, words, usage)
    if given is None:
        return 0
    names: list[str] = []
    settings = merge_settings(given, resumed=partial(_resumed_session, names=names))
    variants = variants_of(settings)
    if "policy.path" not in given and len(names) == len(variants):
        # The folders' names: they may come from links, and the paths are without links by now.
        variants = [replace(v, name=name) for v, name in zip(variants, names, strict=True)]
    if len({variant.seed for variant in variants}) > 1:
        raise UsageError(
            "--seed is one number: all policies have the same scenes", code="flag.invalid-value"
        )
    configs = [build(RobotEvalConfig, variant.settings) for variant in variants]
    return _Command(variants, configs, settings).run()


def _resumed_session(settings: Settings, names: list[str]) -> EarlierRun | None:
    """Return the session that ``--resume`` completes; add its policies' names to ``names``."""
    from proctor.config.flags.merging import EarlierRun, is_resumed
    from proctor.config.flags.parsing import path_of
    from proctor.system.files import read_regular_file

    if not is_resumed(settings):
        return None
    if "output_dir" not in settings:
        raise UsageError(
            "--resume needs --output_dir=FOLDER, the session to complete", code="flag.missing"
        )
    file = path_of(str(settings["output_dir"]), "--output_dir") / SESSION_FILE
    try:
        session = json.loads(read_regular_file(file))
        earlier = session["given"]
        names += map(str, session.get("names", ()))
    except FileNotFoundError:
        raise UsageError(
            f"--resume: {file.parent} holds no trials to resume", code="run.not-found"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--resume: {file} is damaged: {error}", code="run.damaged") from None
    return EarlierRun(dict(earlier), str(file.parent), found={"output_dir": str(file.parent)})


@dataclass(frozen=True)
class _Command:
    """One call of the command, with everything parsed."""

    variants: Sequence[Variant]
    configs: Sequence[RobotEvalConfig]
    settings: Mapping[str, Any]

    def run(self) -> int:
        """Check everything, connect the robot, run the session and show the results."""
        from proctor.control.loop.session import make_robot
        from proctor.control.terminal.keys import TerminalKeys
        from proctor.control.terminal.rerun_display import load_rerun

        if self.configs[0].display_data:
            load_rerun()  # a missing one is said before a policy is loaded
        with contextlib.ExitStack() as stack:
            robot, keys = make_robot(self.configs[0].robot), TerminalKeys()
            self._check_judge(robot, keys)
            root, policies = self._load_policies(robot, stack)
            self._write_session_file(root)
            code = self._run_session(root, policies, robot, keys)
        if code == 0:
            self._show(root, policies)
        return code

    def _load_policies(
        self, robot: Robot, stack: contextlib.ExitStack
    ) -> tuple[Path, list[PolicyUnderTest]]:
        """Load every policy and check it against the robot, which is not connected yet."""
        from proctor import plugins
        from proctor.control.policy.driver import load_robot_policy
        from proctor.control.trials.plan import robot_task
        from proctor.control.trials.records import PolicyUnderTest
        from proctor.runs.folder import RunFolder

        config = self.configs[0]
        task = robot_task(config, robot.name)
        loaded = []
        for variant, own in zip(self.variants, self.configs, strict=True):
            pin = plugins.find_policy(own.policy.type).pin
            own.policy = own.policy if pin is None else pin(own.policy)
            made = load_robot_policy(own.policy, robot, task)
            stack.callback(made.policy.close)
            loaded.append((variant, own, made))
            for note in (*made.policy.spec.notes, *made.policy.spec.warnings):
                print(strip_control_codes(f"note: {variant.name or own.policy.type}: {note}"))
        root = self._root(config)
        several = len(loaded) > 1
        return root, [
            PolicyUnderTest(
                variant.name or own.policy.type,
                own,
                variant.settings,
                made,
                RunFolder(root / variant.name if several else root),
            )
            for variant, own, made in loaded
        ]

    def _root(self, config: RobotEvalConfig) -> Path:
        from proctor.config.flags.parsing import path_of
        from proctor.runs.folder import make_new_folder

        if config.output_dir is not None:
            root = path_of(str(config.output_dir), "--output_dir")
            if not config.resume and (root / SESSION_FILE).is_file() and _has_trials(root):
                raise UsageError(
                    f"{root} already holds trials; add --resume to complete them, or choose "
                    "another --output_dir",
                    code="run.exists",
                )
            root.mkdir(parents=True, exist_ok=True)
            return root
        names = "_".join([config.robot.type, *(v.name for v in self.variants)])
        name = f"{time.strftime('%H-%M-%S')}_{config.job_name or names}"[:150]
        name = name.replace(":", "-").replace("/", "-")
        return make_new_folder(Path("outputs", "eval", time.strftime("%Y-%m-%d"), name))

    def _check_judge(self, robot: Robot, keys: KeyHub) -> None:
        """Refuse a judge that cannot judge, before a policy is loaded."""
        from proctor.config.robot_evaluation import JudgeKind

        if self.configs[0].eval.judge is JudgeKind.SCENE and robot.scene is None:
            raise UsageError(
                f"--eval.judge=scene: {robot.name} has no simulated scene; a person judges it",
                code="robot.no-scene",
            )
        if self._person_judges(robot) and not keys.has_terminal:
            raise UsageError(
                "a person judges the trials by keys, and there is no terminal; run the command in "
                "a terminal",
                code="robot.no-terminal",
            )

    def _person_judges(self, robot: Robot) -> bool:
        from proctor.config.robot_evaluation import JudgeKind

        return robot.scene is None or self.configs[0].eval.judge is JudgeKind.PERSON

    def _make_judge(self, robot: Robot, keys: KeyHub) -> Judge:
        """Return the judge; a person's keys count from now on."""
        from proctor.control.trials.verdicts import KeyQueue, PersonJudge, SceneJudge

        if self._person_judges(robot):
            return PersonJudge(KeyQueue(keys.reader()).next, lambda text: print(text, flush=True))
        assert robot.scene is not None
        return SceneJudge(robot.scene)

    def _write_session_file(self, root: Path) -> None:
        """Write the settings, with absolute paths of checkpoints, for ``--resume``."""
        from proctor.fingerprint import without_secrets
        from proctor.runs.folder import write_json

        given = {n: v for n, v in self.settings.items() if n not in ("resume", "output_dir")}
        paths = [getattr(own.policy, "path", "") for own in self.configs]
        if all(paths):
            given["policy.path"] = [_absolute(path) for path in paths]
        names = [variant.name for variant in self.variants]
        session = {"given": without_secrets(self.configs[0], given), "names": names}
        write_json(root / SESSION_FILE, session)

    def _run_session(
        self, root: Path, policies: Sequence[PolicyUnderTest], robot: Robot, keys: KeyHub
    ) -> int:
        """Connect the robot and run the trials; return the exit code."""
        from proctor.control.loop.session import ControlSession
        from proctor.control.terminal.operator import TerminalOperator
        from proctor.control.trials.loop import Stopped

        print(f"policies: {len(policies)}, robot: {robot.name}, results: {root}")
        try:
            with ControlSession(robot, operator=TerminalOperator(keys), keys=keys) as control:
                decision = self._run_trials(root, policies, control)
        except KeyboardInterrupt as stop:
            self._say_how_to_resume(root, "interrupted")
            return exit_code_of(stop)
        except Stopped as stop:
            self._say_how_to_resume(root, str(stop))
            return EXIT_ERRORED
        except RobotError as error:
            print(strip_control_codes(f"proctor: error: {error}"), file=sys.stderr)
            self._say_how_to_resume(root, "the robot failed; its trial does not count")
            return EXIT_ERRORED
        if decision is not None:
            print(strip_control_codes(f"stopped: {decision}"))
        return 0

    def _run_trials(
        self, root: Path, policies: Sequence[PolicyUnderTest], control: ControlSession
    ) -> str | None:
        """Run the missing trials; return why they stopped early, or None."""
        from proctor.control.terminal.live_page import LiveAddress, live_page
        from proctor.control.terminal.rerun_display import rerun_display
        from proctor.control.trials.loop import TrialLoop
        from proctor.control.trials.plan import robot_task
        from proctor.control.trials.session import SessionOptions, TrialSession

        robot = control.robot
        judge = self._make_judge(robot, control.keys)

        def check() -> None:
            if control.should_end() and (stop := control.signals.as_interrupt()) is not None:
                raise stop

        config = self.configs[0]
        task = robot_task(config, robot.name)
        title = f"Trials on {robot.name}"
        with (
            live_page(robot, title, config.fps, LiveAddress.of(config)) as live,
            rerun_display(config, title) as rerun,
        ):
            loop = TrialLoop(robot, judge, check, live, rerun)
            options = SessionOptions(root, task, live)
            session = TrialSession(policies, robot, judge, loop, options)
            with control.signals.deferred():
                session.run()
        return session.decision

    def _say_how_to_resume(self, root: Path, why: str) -> None:
        again = permission_flags(self.settings, but=("output_dir",))
        command = f"proctor eval --resume --output_dir={shlex.quote(str(root))}{again}"
        print(
            f"{why}; judged trials are kept, and results are shown after the last one; continue "
            f"with\n  {command}",
            file=sys.stderr,
        )

    def _show(self, root: Path, policies: Sequence[PolicyUnderTest]) -> None:
        """Show the results, which says for the first time which policy did what."""
        from proctor.commands.evaluation.eval_several import show_all
        from proctor.report.run.run import load_run
        from proctor.report.run.warnings import journal_warnings

        if len(policies) > 1:
            show_all(
                [(v, p.folder.path) for v, p in zip(self.variants, policies, strict=True)], root
            )
            return
        run = load_run(policies[0].folder.path)
        for warning in journal_warnings(run.path, run.damaged):
            print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
        print(f"success {run.tally}")
        if run.contamination is not None:
            print(strip_control_codes(run.contamination.text))
        print(f"results: {root}")


def _has_trials(root: Path) -> bool:
    from proctor.runs.discovery import find_runs
    from proctor.runs.folder import RunFolder

    return any(RunFolder(folder).has_episodes for folder in find_runs(root))


def _absolute(path: str) -> str:
    here = Path(path).expanduser()
    return str(here.absolute()) if here.exists() else path
