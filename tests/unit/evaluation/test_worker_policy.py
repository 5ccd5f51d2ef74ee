"""A worker that makes its own policy runs the policy of the run's record, or no policy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.errors import ProctorError
from proctor.evaluation import run as evaluation_run
from proctor.evaluation.run import Evaluation

CODE = """
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from proctor.policies.base import Placement, PolicyConfig, PolicyPlugin
from proctor.policies.scripted.random import RandomConfig, RandomPolicy

@dataclass
class Config(RandomConfig):
    type: str = "weighed_policy:PLUGIN"

class Weighed(RandomPolicy):
    def __init__(self, config, interface):
        super().__init__(config, interface)
        self.spec = replace(self.spec, placement=Placement.WORKER)
        self._hash = hashlib.sha256(Path({weights!r}).read_bytes()).hexdigest()

    def protocol(self):
        return {{"files": {{"weights.bin": self._hash}}}}

PLUGIN = PolicyPlugin(config=Config, make=Weighed, summary="reads a file in every worker")
"""


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"one")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "weighed_policy.py").write_text(CODE.format(weights=str(weights)))
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.delitem(sys.modules, "weighed_policy", raising=False)
    return weights


@pytest.mark.parametrize("in_processes", [True, False])
def test_a_worker_with_other_weights_than_the_record_ends_the_run(
    run: Callable[..., Evaluation],
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    in_processes: bool,
) -> None:
    flags = {"policy__type": "weighed_policy:PLUGIN", "eval__use_async_envs": in_processes}
    assert len(run(**flags).rows) == 4
    written = evaluation_run.truncate_partial_line

    def changing(folder: Path) -> None:
        weights.write_bytes(b"two")
        written(folder)

    monkeypatch.setattr(evaluation_run, "truncate_partial_line", changing)
    with pytest.raises(ProctorError) as refused:
        run(**flags)
    assert "weights.bin" in str(refused.value)
