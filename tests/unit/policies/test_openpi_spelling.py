"""openpi writes observation/state where Proctor and LeRobot write observation.state."""

from __future__ import annotations

import numpy as np
import pytest
from tests.refusals import refuses

from proctor.cli import main
from proctor.errors import ProtocolError
from proctor.features import Feature, FeatureKind
from proctor.protocols.inference_messages import InferenceRequest
from proctor.serving.inputs import Inputs


@pytest.mark.parametrize(
    "flag",
    ["--policy.inputs=[observation/state]", "--rename_map={observation/state: observation/state}"],
)
def test_the_benchmarks_spelling_is_hinted_before_a_server_is_asked(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--policy.type=remote", "--policy.url=ws://127.0.0.1:1", "--env.type=fake", flag]
    assert main(["eval", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "did you mean 'observation.state'? (names with slashes are openpi's)" in line


def test_a_client_that_spells_one_of_several_states_with_slashes_is_told() -> None:
    state = Feature(FeatureKind.STATE, (2,), "float32")
    inputs = Inputs({"observation.state": state, "observation.velocity": state}, 1)
    request = InferenceRequest(
        observation={
            "observation/state": np.zeros(2, np.float32),
            "observation.velocity": np.zeros(2, np.float32),
        }
    )
    with refuses(ProtocolError, "protocol.missing-input") as refused:
        inputs.rows(request, {})
    assert "'observation.state' with dots" in str(refused.value)
