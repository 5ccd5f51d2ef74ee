"""The commands of docs/guides/latency.md run, with small policies in place of CHECKPOINT."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import small_policies as small

from proctor.cli import main
from proctor.features import ACTION, ENVIRONMENT_STATE, Feature, FeatureKind
from proctor.report.run.latency_curve import protocol_latency
from proctor.report.run.run import load_run

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "latency.md"
FENCES = re.findall(r"```(bash|console)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
LINES = [
    line.removeprefix("$ ")
    for _, code in FENCES
    for line in code.replace("\\\n", " ").splitlines()
    if line.removeprefix("$ ").startswith("proctor eval")
]


def on_fake(line: str, checkpoint: Path) -> list[str]:
    """Return the words of a line, on the fake benchmark and with a small checkpoint."""
    words = [word for word in shlex.split(line)[1:] if not word.startswith("--env.")]
    words = [word.replace("CHECKPOINT", str(checkpoint)) for word in words]
    fake = ["--env.type=fake", "--eval.n_episodes=1", "--eval.use_async_envs=false"]
    return [*words, *fake, "--video.episodes=0"]


@pytest.fixture
def act(tmp_path: Path) -> Path:
    config = small.small_act(
        input_features={ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float32")},
        output_features={ACTION: Feature(FeatureKind.ACTION, (2,), "float32")},
        chunk_size=10,
        n_action_steps=10,
    )
    return small.write_small(config, tmp_path / "checkpoint")


def test_the_pages_first_command_makes_a_run_for_every_latency(
    act: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*on_fake(LINES[0], act), "--output_dir=out"]) == 0
    runs = [load_run(Path("out", f"latency{n}")) for n in (0, 2, 4)]
    assert [protocol_latency(run.record.protocol) for run in runs] == [0, 2, 4]


def test_the_pages_refusal_is_what_proctor_says(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = (line for line in LINES if "0,2,10" in line)
    assert main(shlex.split(line)[1:]) == 2
    assert capsys.readouterr().err in PAGE.read_text()


@pytest.mark.vla
def test_the_pages_real_time_chunking_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = pytest.importorskip("tests.tiny_families")
    (line,) = (line for line in LINES if "rtc_config" in line)
    longer = tiny.TINY["smolvla"] | {"chunk_size": 20, "n_action_steps": 20}
    monkeypatch.setitem(tiny.TINY, "smolvla", longer)
    with tiny.tiny_models():
        checkpoint = tiny.checkpoint_of("smolvla", tmp_path)
        words = [*on_fake(line, checkpoint), f"--env.image_size={tiny.SIDE}"]
        assert main([*words, f"--output_dir={tmp_path / 'out'}"]) == 0


def test_all_commands_of_the_page_are_tested_here() -> None:
    assert len(LINES) == 3
