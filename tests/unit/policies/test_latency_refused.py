"""A latency that no chunk lasts for: one answer, wherever it is asked, and before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_policies as small
from tests.refusals import refuses

from proctor.cli import main
from proctor.errors import UsageError
from proctor.features import ACTION, ENVIRONMENT_STATE, Feature, FeatureKind
from proctor.policies.latency import check_config_latency, check_latency
from proctor.policies.remote.config import RemoteConfig
from proctor.policies.remote.policy import _check_rhythm
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.protocols.inference_messages import ServerInfo

OVER = "latency_steps=3: act executes 3 actions of a chunk"
FAKE = ["--env.type=fake", "--eval.use_async_envs=false", "--eval.n_episodes=1", "--live=false"]
BLIND = {
    "input_features": {ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float32")},
    "output_features": {ACTION: Feature(FeatureKind.ACTION, (2,), "float32")},
}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["eval", *words, *FAKE, "--output_dir=out"]) == 2
    assert not Path("out").exists(), "it was refused after something ran"
    return capsys.readouterr().err


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    small.write_small(small.small_act(**BLIND), tmp_path / "act")
    return "--policy.path=act"


def test_the_last_of_several_is_refused_before_the_first_is_played(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkPolicy, "__init__", None)  # nor are weights moved for it
    for latencies in ("3", "0,2,3", "0,3,2"):
        assert OVER in refused(capsys, checkpoint, f"--eval.latency_steps={latencies}")
    more = "--policy.n_action_steps=5"
    assert "at most 4" in refused(capsys, checkpoint, more, "--eval.latency_steps=0,5")
    new = ("--policy.type=act", "--policy.n_action_steps=3")
    assert OVER in refused(capsys, *new, "--eval.latency_steps=0,3")


@pytest.mark.parametrize("policy", ["zero", "random"])
def test_a_policy_of_single_actions_has_no_latency(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    policy: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = refused(capsys, f"--policy.type={policy}", "--eval.latency_steps=0,1")
    assert f"latency_steps=1: {policy}" in text


def test_a_server_says_the_same_as_a_checkpoint() -> None:
    served = ServerInfo("act", {}, 2, n_action_steps=3, remembers=True)
    with refuses(UsageError, "policy.latency-too-long") as refusal:
        _check_rhythm(RemoteConfig(url="ws://here:1", latency_steps=3), served)
    assert str(refusal.value).startswith(OVER)


def test_who_recalls_its_last_answer_is_not_asked_before_that_came() -> None:
    search = small.small_tdmpc(n_action_repeats=1, n_action_steps=3, latency_steps=2)
    with refuses(UsageError, "policy.latency-too-long") as refusal:
        check_config_latency(search)
    assert "at most 1" in str(refusal.value)
    check_config_latency(small.small_tdmpc(n_action_repeats=3, use_mpc=False, latency_steps=2))
    check_latency(2, "any", 4, is_stateful=True)
    check_latency(0, "any", 1)
