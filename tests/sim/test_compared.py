"""Claims of docs/explanation/compared.md that need real simulators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proctor import evaluate
from proctor.features import FeatureKind
from proctor.plugins import find_benchmark
from tests.sim.adapted_benchmarks import ALOHA, PUSHT, made

pytestmark = pytest.mark.sim

METAWORLD = {"type": "metaworld", "task": "reach-v3"}
PACKAGES = {"metaworld": "metaworld", "pusht": "gym_pusht", "aloha": "gym_aloha"}


@pytest.mark.parametrize("settings", [PUSHT, ALOHA], ids=["pusht", "aloha"])
def test_workers_show_their_pictures_to_a_policy(settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[settings["type"]])
    features = made(settings).features()
    cameras = [key for key, feature in features.items() if feature.kind is FeatureKind.VISUAL]
    run = evaluate(
        policy={"type": "random", "n_action_steps": 4, "inputs": cameras},
        env={**settings, "episode_length": 8},
        eval={"n_episodes": 2, "batch_size": 2},
        video={"episodes": 0},
        output_dir=tmp_path / "run",
    )
    assert run.complete
    # Each at the start and after 4 of 8 steps. One worker may play both, if the other opens late.
    assert {(row.error, row.steps, row.renders) for row in run.rows} == {(None, 8, 2)}


@pytest.mark.parametrize("settings", [METAWORLD, PUSHT, ALOHA], ids=PACKAGES)
def test_the_flag_for_the_length_of_episodes_is_heeded(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip(PACKAGES[settings["type"]])
    assert find_benchmark(settings["type"]).config().episode_length != 7
    run = evaluate(
        policy={"type": "zero"},
        env={**settings, "episode_length": 7},
        eval={"n_episodes": 1, "use_async_envs": False},
        output_dir=tmp_path / "run",
    )
    assert {row.steps for row in run.rows} == {7}
