from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proctor
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.benchmarks.perturbations import ALL, DIMENSIONS, LEVELS
from proctor.benchmarks.perturbations.benchmark import PerturbedBenchmark
from proctor.benchmarks.perturbations.dimensions import dimensions_of
from proctor.benchmarks.perturbations.language import paraphrase
from proctor.benchmarks.perturbations.paraphrases import PARAPHRASES
from proctor.benchmarks.perturbations.training_wordings import training_wordings, wording_table
from proctor.cli import main
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.features import ENVIRONMENT_STATE, IMAGE, STATE, Array
from proctor.policies.language_act.config import LanguageActConfig
from proctor.runs.folder import RunFolder
from proctor.types import Task
from tests.conftest import digests
from tests.refusals import refuses

FAKE = "noise,blur,occlusion,state_noise,action_noise,delay,language"
CONTROL = "state_noise,action_noise,delay"


def perturbed(names: str, **settings: Any) -> PerturbedBenchmark:
    benchmark = Fake(FakeConfig(**settings))
    return PerturbedBenchmark(benchmark, dimensions_of(names.split(","), benchmark), LEVELS)


def task_of(benchmark: PerturbedBenchmark, dimension: str, level: int) -> Task:
    return next(
        task
        for task in benchmark.tasks()
        if task.perturbation and task.suite == f"point@{dimension}-{level}"
    )


def test_every_task_is_followed_by_its_variants_with_its_seeds() -> None:
    benchmark = perturbed(FAKE, n_tasks=2)
    tasks = benchmark.tasks()
    assert len(tasks) == 2 * (1 + 7 * 3)
    assert tasks[0].perturbation is None
    for task in tasks[1:22]:
        assert task.perturbation is not None
        assert task.perturbation.clean_key == tasks[0].key
        spec, clean = benchmark.spec(task, 3, 1000), benchmark.spec(tasks[0], 3, 1000)
        assert (spec.seed, spec.init_state, spec.world) == (clean.seed, None, clean.world)
    assert benchmark.sim_task(tasks[25]) == tasks[22]


def observed(
    benchmark: PerturbedBenchmark, task: Task, keys: list[str], steps: int = 0, seed: int = 7
) -> Any:
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, seed))
    for _ in range(steps):
        sim.step(np.ones(2, np.float32))
    return sim.observe(keys)


@pytest.mark.parametrize("dimension", ["noise", "blur", "occlusion"])
def test_an_image_depends_on_seed_dimension_level_and_step_only(dimension: str) -> None:
    benchmark = perturbed(dimension, image_size=64)
    task = task_of(benchmark, dimension, 2)
    direct = observed(benchmark, task, [IMAGE], steps=2)[IMAGE]
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 7))
    for _ in range(2):
        sim.observe([IMAGE, STATE])  # as a video or a recording does
        sim.step(np.ones(2, np.float32))
    again = sim.observe([IMAGE, STATE])
    np.testing.assert_array_equal(again[IMAGE], direct)
    assert direct.dtype == np.uint8
    clean = observed(benchmark, benchmark.tasks()[0], [IMAGE, STATE], steps=2)
    np.testing.assert_array_equal(again[STATE], clean[STATE])


def test_levels_of_image_noise_and_occlusion_have_their_strength() -> None:
    benchmark = perturbed("noise,occlusion", image_size=128)
    images = {
        seed: observed(benchmark, benchmark.tasks()[0], [IMAGE], seed=seed)[IMAGE].astype(float)
        for seed in range(20)
    }
    seed, clean = min(images.items(), key=lambda item: abs(item[1].mean() - 128))

    def changed(dimension: str, level: int) -> Array:
        task = task_of(benchmark, dimension, level)
        image = observed(benchmark, task, [IMAGE], seed=seed)[IMAGE]
        return np.asarray(image - clean)

    assert changed("noise", 1).std() == pytest.approx(10, rel=0.1)
    assert changed("noise", 1).std() < changed("noise", 2).std() < changed("noise", 3).std()
    for level, area in ((1, 0.05), (2, 0.1), (3, 0.2)):
        covered = (changed("occlusion", level) != 0).any(axis=2).mean()
        assert covered == pytest.approx(area, rel=0.1)


def test_states_get_noise_of_the_level_and_physics_stays_exact() -> None:
    benchmark = perturbed("state_noise")
    sim = benchmark.make_sim(benchmark.tasks()[0])
    task, errors = task_of(benchmark, "state_noise", 3), []
    for index in range(100):
        sim.reset(benchmark.spec(task, index, 7))
        errors.append(sim.observe([ENVIRONMENT_STATE])[ENVIRONMENT_STATE] - sim.physics())
    assert np.std(errors) == pytest.approx(0.04, rel=0.15)


def test_a_delayed_action_is_executed_later_and_the_robot_holds_before() -> None:
    benchmark = perturbed("delay")
    sim = benchmark.make_sim(benchmark.tasks()[0])
    sim.reset(benchmark.spec(task_of(benchmark, "delay", 2), 0, 7))  # 0.2 s at 10 fps: two steps
    start = sim.physics()[:2]
    moved = []
    for _ in range(4):
        sim.step(np.array([1, 0], np.float32))
        moved.append(round(float(sim.physics()[0] - start[0]), 6))
    assert moved == [0.0, 0.0, 0.1, 0.2]


def test_a_clean_episode_after_perturbed_ones_is_the_same_as_alone() -> None:
    benchmark = perturbed(FAKE)
    clean, *variants = benchmark.tasks()
    alone = observed(benchmark, clean, [IMAGE, STATE], steps=3)
    sim = benchmark.make_sim(clean)
    for task in (*variants, clean):
        sim.reset(benchmark.spec(task, 0, 7))
        for _ in range(3):
            sim.step(np.ones(2, np.float32))
    after = sim.observe([IMAGE, STATE])
    for key, value in alone.items():
        np.testing.assert_array_equal(after[key], value)


def test_every_metaworld_instruction_has_paraphrases_of_our_own() -> None:
    for told in {row.instruction for row in TASKS}:
        assert told in PARAPHRASES
        assert len({told, *(paraphrase(told, level) for level in LEVELS)}) == 4


def test_an_instruction_without_a_table_is_paraphrased_by_templates() -> None:
    original = "turn on the stove and put the moka pot on it"
    assert paraphrase(original, 1) == f"Could you please {original}?"
    assert paraphrase(original, 2) == "switch on the stove and set the moka pot on it"
    assert paraphrase(original, 3) == (
        "the stove should get hot, and the moka pot should end up on it"
    )
    odd = "fold the shirt"
    assert len({odd, *(paraphrase(odd, level) for level in LEVELS)}) == 4


def test_episodes_are_the_same_for_any_number_of_workers(run: Callable[..., Evaluation]) -> None:
    flags = {"policy__type": "expert", "perturb": CONTROL, "eval__n_episodes": 3}
    one, two = (run(eval__batch_size=size, **flags) for size in (1, 2))
    assert len(digests(one)) == 3 * (1 + 3 * 3)
    assert digests(one) == digests(two)
    clean = run(policy__type="expert", eval__n_episodes=3)
    assert digests(clean).items() <= digests(one).items()
    record = RunFolder(one.path).read()
    assert record is not None
    defined = record.protocol["benchmark"]["perturbations"]
    assert defined["definitions"] == 3
    assert defined["levels"]["delay"] == {"1": 0.1, "2": 0.2, "3": 0.4}
    assert record.tasks is not None
    assert [task.perturbation is None for task in record.tasks] == [True] + 9 * [False]


def test_a_killed_run_resumes_to_the_same_episodes(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    flags = {"perturb": "action_noise,delay", "perturb_levels": [2], "env.step_ms": 1}
    folder = tmp_path / "killed"
    words = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, "-m", "proctor.cli", "eval", "--policy.type=random", *words]
    command += ["--env.type=fake", "--eval.n_episodes=20", "--eval.batch_size=2"]
    command += ["--video.episodes=0", f"--output_dir={folder}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = folder / "episodes.jsonl"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    settings = {name.replace(".", "__"): value for name, value in flags.items()}
    settings |= {"eval__n_episodes": 20}
    resumed = run(output_dir=str(folder), resume=True, **settings)
    assert digests(resumed) == digests(run(**settings))


def test_all_is_what_the_benchmark_supports_and_the_policy_notices(
    run: Callable[..., Evaluation],
) -> None:
    evaluation = run(policy__type="expert", perturb=ALL, perturb_levels=[1], eval__n_episodes=1)
    suites = {row.suite for row in evaluation.rows}
    assert suites == {"point", *(f"point@{name}-1" for name in CONTROL.split(","))}


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"perturb": "camra"}, "perturb.unknown"),
        ({"perturb": "camera"}, "perturb.unsupported"),
        ({"perturb": "light"}, "perturb.unsupported"),
        ({"perturb": "robot_pose"}, "perturb.unsupported"),
        ({"perturb": "noise"}, "perturb.unnoticed"),
        ({"perturb": "language", "policy__type": "expert"}, "perturb.unnoticed"),
        ({"perturb": "delay", "perturb_levels": [4]}, "flag.out-of-range"),
        ({"perturb": "delay", "perturb_levels": []}, "flag.empty"),
    ],
)
def test_a_combination_that_cannot_be_is_refused_before_anything_starts(
    flags: dict[str, Any], code: str, run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    with refuses(UsageError, code):
        run(**flags)
    assert not any(tmp_path.iterdir())


def test_tasks_without_an_instruction_have_no_language_to_change() -> None:
    class Silent(Fake):
        def tasks(self) -> list[Task]:
            return [replace(task, instruction="") for task in super().tasks()]

    with refuses(UsageError, "perturb.unsupported"):
        dimensions_of(["language"], Silent(FakeConfig()))
    assert "language" not in [one.name for one in dimensions_of([ALL], Silent(FakeConfig()))]


def test_python_callers_perturb_too_and_the_policy_sees_it(tmp_path: Path) -> None:
    def still(observation: dict[str, Array]) -> Array:
        return np.zeros(2, np.float32)

    evaluation = proctor.evaluate(
        still, {"type": "fake", "episode_length": 2}, n_episodes=1, perturb="state_noise,noise",
        perturb_levels=[3], video={"episodes": 0}, output_dir=tmp_path / "run",
    )  # fmt: skip
    assert len(evaluation.rows) == 3


def test_the_dimensions_are_listed_in_one_place() -> None:
    benchmark = Fake(FakeConfig())
    assert {one.name for one in dimensions_of([ALL], benchmark)} < set(DIMENSIONS)


def test_repeats_videos_and_audits_treat_a_variant_as_a_task_of_its_own(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = run(
        policy__type="expert", env__episode_length=20, perturb="delay", perturb_levels=[3],
        eval__n_episodes=2, eval__repeats=2, video__episodes=1,
    )  # fmt: skip
    assert evaluation.robustness is not None
    lost = [pair for pair in evaluation.robustness.pairs if pair.lost]
    assert len(lost) == 4
    filmed = [
        pair
        for pair in lost
        if all((evaluation.path / row.video).is_file() for row in (pair.clean, pair.perturbed))
    ]
    assert len(filmed) == 1
    assert main(["audit", str(evaluation.path), "--episodes=2"]) == 0
    audited = capsys.readouterr().out.splitlines()[:2]
    assert {line.split(" episode")[0] for line in audited} == {
        "point / point-0",
        "point@delay-3 / point-0",
    }


def test_no_wording_to_train_on_is_examined_or_belongs_to_two_tasks():
    instructions = {task.instruction for task in TASKS}
    assert wording_table().keys() == instructions
    examined = {paraphrase(text, level).lower() for text in instructions for level in (1, 2, 3)}
    trained = [wording.lower() for text in instructions for wording in training_wordings(text)]
    assert min(map(len, wording_table().values())) >= 25
    assert not examined.intersection(trained)
    assert len({*trained, *map(str.lower, instructions)}) == len(trained) + len(instructions)


def test_language_act_tells_the_wordings_of_different_tasks_apart():
    config = LanguageActConfig()
    task_of = {}
    for text in {task.instruction for task in TASKS}:
        for wording in (text, *training_wordings(text)):
            key = config.instruction_key(config.encode_instruction(wording))
            assert task_of.setdefault(key, text) == text, wording


def test_an_instruction_outside_the_table_has_wordings_too_and_an_empty_one_none():
    assert "please open the jar" in training_wordings("Open the jar.")
    assert training_wordings(" ") == ()
