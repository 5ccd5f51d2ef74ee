"""--eval.judge: a reward classifier's verdict of every episode, beside the simulator's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.callbacks.base import Callback
from proctor.cli import main
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.engine.cluster.cluster_engine import ClusterEngine
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.errors import SpecMismatch, UsageError
from proctor.evaluation.cluster.node import NodeSetup
from proctor.evaluation.preparing import prepare
from proctor.features import IMAGE, Feature, FeatureKind
from proctor.report.compare.protocol_differences import changed_protocol
from proctor.report.run.judge_agreement import judge_agreement
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.runs.journal import EpisodeRecord, read_journal
from proctor.types import EpisodeKey, EpisodeResult, Outcome
from tests.refusals import refuses
from tests.run_folders import episode
from tests.unit.evaluation.test_node import Threads

torch = pytest.importorskip("torch", reason="a judge needs torch: pip install 'proctor[torch]'")
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint  # noqa: E402
from proctor.policies.lerobot.processors.pipelines import default_pipelines  # noqa: E402
from proctor.policies.reward_classifier.config import RewardClassifierConfig  # noqa: E402
from proctor.policies.reward_classifier.network import RewardClassifier  # noqa: E402
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint  # noqa: E402

RUN = {
    "env.type": "fake", "env.image_size": 128, "policy.type": "zero", "eval.n_episodes": 4,
    "eval.use_async_envs": "false", "video.episodes": 0,
}  # fmt: skip
SIZES = {"model_type": "resnet10", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 20]}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_judge(tmp_path_factory.mktemp("judge"))


def write_judge(scratch: Path, **changes: int) -> Path:
    """Write a reward classifier with random weights for the fake benchmark's image."""
    encoder = scratch / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text(json.dumps(SIZES))
    images = {IMAGE: Feature(FeatureKind.VISUAL, (128, 128, 3), "uint8")}
    config = RewardClassifierConfig(
        num_cameras=1, hidden_dim=8, latent_dim=6, model_name=str(encoder), **changes
    ).with_features(images, 2)
    torch.manual_seed(0)
    network = RewardClassifier(config)
    stats = {IMAGE: {"mean": torch.full((3, 1, 1), 0.4), "std": torch.full((3, 1, 1), 0.3)}}
    write_checkpoint(
        LoadedCheckpoint(config, network, "", *default_pipelines(config, stats, stats)),
        scratch / "checkpoint",
    )
    return scratch / "checkpoint"


def evaluate(folder: Path, **more: object) -> list[EpisodeRecord]:
    settings = {**RUN, "output_dir": folder} | {k.replace("__", "."): v for k, v in more.items()}
    assert main(["eval", *(f"--{name}={value}" for name, value in settings.items())]) == 0
    return read_journal(folder).rows


def test_every_episode_is_judged_from_one_more_image(
    judge: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = evaluate(tmp_path / "plain")
    assert "judge:" not in capsys.readouterr().out
    judged = evaluate(tmp_path / "judged", eval__judge=judge)
    assert "agrees with the simulator in" in capsys.readouterr().out
    assert [row.digest for row in plain] == [row.digest for row in judged]
    assert {(row.judge_probability, row.renders) for row in plain} == {(None, 0)}
    assert {row.renders for row in judged} == {1}
    for row in judged:
        assert row.judge_probability is not None
        assert row.judge_success == (row.judge_probability > 0.5)


def test_workers_in_processes_of_their_own_give_the_same_verdicts(
    judge: Path, tmp_path: Path
) -> None:
    here, there = (
        evaluate(tmp_path / name, eval__judge=judge, eval__use_async_envs=apart)
        for name, apart in (("here", "false"), ("there", "true"))
    )
    first, second = ({row.key: row.judge_probability for row in rows} for rows in (here, there))
    assert first == second


@pytest.mark.parametrize(("threshold", "verdict"), [(0.0, True), (0.999999, False)])
def test_the_threshold_decides(
    judge: Path, tmp_path: Path, threshold: float, verdict: bool
) -> None:
    folder = tmp_path / "run"
    rows = evaluate(folder, eval__judge=judge, eval__judge_threshold=threshold)
    assert {row.judge_success for row in rows} == {verdict}
    agreement = judge_agreement(rows)
    assert agreement is not None
    solved = sum(row.outcome is Outcome.SUCCESS for row in rows)
    assert agreement.agreed == (solved if verdict else len(rows) - solved)
    said = json.loads((folder / "eval_info.json").read_text())["proctor"]["judge"]
    assert said == agreement.to_json()
    assert page_data(load_run(folder))["judge"]["compared"] == len(rows)


class Verdicts(Callback):
    """Keeps the verdicts of episodes."""

    def __init__(self) -> None:
        self.probabilities: dict[EpisodeKey, float | None] = {}

    def on_episode_end(self, result: EpisodeResult) -> None:
        assert result.final_images is None
        self.probabilities[result.spec.key] = result.judge_probability


def test_the_head_of_a_cluster_judges_the_images_of_its_nodes(
    judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # as the node does, in this process
    here = evaluate(tmp_path / "here", eval__judge=judge)
    config = build(
        EvalConfig, RUN | {"eval.judge": str(judge), "output_dir": str(tmp_path / "head")}
    )
    context = prepare(config)
    assert context.judge is not None
    setup = NodeSetup(
        EvalConfig, config.as_dict(), context.protocol(), tmp_path, None, context.judge.features
    )
    engine, heard = ClusterEngine(Threads(setup), tmp_path), Verdicts()
    engine.set_scheduler(Scheduler(context.plan, SchedulerLimits(max_batch=1)), {})
    try:
        engine.run([context.judge, heard])
    finally:
        engine.close()
    assert heard.probabilities == {row.key: row.judge_probability for row in here}


def test_agreement_has_an_interval_and_names_both_kinds_of_error() -> None:
    sim = [Outcome.SUCCESS] * 6 + [Outcome.FAILURE] * 6
    said = [True] * 5 + [False] + [True] * 2 + [False] * 4
    rows = [
        replace(episode(0, i, outcome), judge_success=verdict, judge_probability=0.7)
        for i, (outcome, verdict) in enumerate(zip(sim, said, strict=True))
    ]
    found = judge_agreement([*rows, episode(0, 20, Outcome.SUCCESS)])
    assert found is not None
    assert (found.judged, found.agreed, found.false_successes, found.missed_successes) == (
        12, 9, 2, 1
    )  # fmt: skip
    low, high = found.interval or (0, 0)
    assert low < found.rate == 0.75 < high
    assert judge_agreement([episode(0, 0, Outcome.SUCCESS)]) is None


def test_a_judge_beside_no_success_rule_is_not_compared() -> None:
    row = replace(episode(0, 0, Outcome.ENDED), success_once=None, judge_success=True)
    found = judge_agreement([row])
    assert found is not None
    assert (found.successes, found.compared, found.rate, found.interval) == (1, 0, None, None)
    assert found.to_json()["pc_agreement"] is None


def protocol_of(**more: object) -> dict:
    return prepare(
        build(EvalConfig, RUN | {k.replace("__", "."): v for k, v in more.items()})
    ).protocol()


def test_the_fingerprint_has_the_judges_weights_and_no_path(judge: Path, tmp_path: Path) -> None:
    plain, judged = protocol_of(), protocol_of(eval__judge=str(judge))
    assert "judge" not in plain
    assert str(judge) not in json.dumps(judged)
    assert judged.pop("judge")["files"].keys() >= {"model.safetensors", "config.json"}
    assert judged == plain


def test_runs_with_and_without_a_judge_are_comparable(judge: Path) -> None:
    assert changed_protocol(protocol_of(), protocol_of(eval__judge=str(judge))) == []


def test_a_resumed_run_keeps_its_judge(judge: Path, tmp_path: Path) -> None:
    evaluate(tmp_path / "run", eval__judge=judge, eval__n_episodes=2)
    words = [f"--output_dir={tmp_path / 'run'}", "--resume", "--eval.n_episodes=4"]
    assert main(["eval", *words, "--eval.judge_threshold=0.9"]) == 2
    assert main(["eval", *words]) == 0
    assert all(row.judge_success is not None for row in read_journal(tmp_path / "run").rows)


def test_what_cannot_judge_is_refused(judge: Path, tmp_path: Path) -> None:
    for changed, error, code in (
        ({"env.image_size": 64}, SpecMismatch, "policy.image-size-mismatch"),
        ({"eval.judge": str(tmp_path / "nowhere")}, UsageError, "checkpoint.not-found"),
        ({"eval.scheduler": "lockstep"}, UsageError, "flag.conflict"),
        ({"eval.judge_threshold": 1.5}, UsageError, "flag.out-of-range"),
    ):
        with refuses(error, code) as refused:
            prepare(build(EvalConfig, RUN | {"eval.judge": str(judge)} | changed))
        assert error is UsageError or "--env.image_size=128" in str(refused.value)


def test_a_judge_of_several_classes_is_refused(tmp_path: Path) -> None:
    several = write_judge(tmp_path, num_classes=3)
    with refuses(UsageError, "policy.not-a-judge"):
        prepare(build(EvalConfig, RUN | {"eval.judge": str(several)}))


def test_a_policy_is_no_judge(tmp_path: Path) -> None:
    actor = Path(__file__).parents[2] / "golden" / "data" / "rl_run" / "000006" / "pretrained_model"
    with refuses(UsageError, "policy.not-a-reward-model"):
        prepare(build(EvalConfig, RUN | {"eval.judge": str(actor)}))
