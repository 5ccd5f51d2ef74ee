"""A network with random weights is evaluated with a warning, wherever its results are shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import small_policies as small

from proctor.cli import main
from proctor.errors import ProctorWarning
from proctor.features import ACTION, ENVIRONMENT_STATE, Feature, FeatureKind
from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run

FAKE = ["--env.type=fake", "--eval.use_async_envs=false", "--eval.n_episodes=2"]
SMALL = {"type": "act", "dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "device": "cpu"}
ACT = [f"--policy.{name}={value}" for name, value in SMALL.items()]
SAID = "act is not trained: its weights are random"


def test_an_untrained_network_is_named_before_the_run_in_its_results_and_on_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["eval", *ACT, *FAKE, f"--output_dir={run}"]) == 0
    told = capsys.readouterr()
    assert sum(f"warning: {SAID}" in line for line in told.err.splitlines()) == 1
    results = told.out[told.out.index("success ") :]
    assert f"warning: {SAID}" in results
    info = json.loads((run / "eval_info.json").read_text())
    assert info["proctor"]["warnings"][0].startswith(SAID)
    loaded = load_run(run)
    assert page_data(loaded)["warnings"][0].startswith(SAID)
    assert SAID in loaded.to_markdown()
    shutil.copytree(run, tmp_path / "copy")
    (comparison,) = compare_all([loaded, load_run(tmp_path / "copy")], Criteria())
    assert sum(SAID in warning for warning in comparison.warnings) == 2


def test_a_checkpoint_and_a_script_have_no_such_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    act = small.small_act(
        input_features={ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float32")},
        output_features={ACTION: Feature(FeatureKind.ACTION, (2,), "float32")},
    )
    folder = small.write_small(act, tmp_path / "checkpoint")
    for number, flag in enumerate((f"--policy.path={folder}", "--policy.type=zero")):
        run = tmp_path / str(number)
        assert main(["eval", flag, *FAKE, f"--output_dir={run}"]) == 0
        assert page_data(load_run(run))["warnings"] == []
    told = capsys.readouterr()
    assert "not trained" not in told.err + told.out


def test_python_warns_too(tmp_path: Path) -> None:
    import proctor

    with pytest.warns(ProctorWarning, match="not trained"):
        proctor.evaluate(
            policy=SMALL,
            env="fake",
            n_episodes=1,
            output_dir=tmp_path / "run",
            eval={"use_async_envs": False},
        )
