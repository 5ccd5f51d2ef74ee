"""SAC on a CUDA device: an update as a CUDA graph gives what the same update gives without one."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

from tests.tiny_sac import make_batches, make_learner

pytestmark = pytest.mark.gpu
UPDATES = 8
"""More than the updates before recording."""
VARIANTS: dict[str, dict[str, Any]] = {
    "gripper": {"utd_ratio": 2, "bc_weight": 1.0, "bc_gripper_weight": 1.0},
    "images": {"images": True},
    "rare actor, subsets": {
        "policy_update_freq": 2, "gripper": False, "num_critics": 4, "num_subsample_critics": 2,
    },
}  # fmt: skip


def to_cuda(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, dict):
        return {key: to_cuda(part) for key, part in value.items()}
    assert is_dataclass(value)
    return type(value)(**{f.name: to_cuda(getattr(value, f.name)) for f in fields(value)})  # type: ignore[arg-type]


def run(*, graphs: bool, **options: Any) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    learner = make_learner(device="cuda", cuda_graphs=graphs, **options)
    batches = (to_cuda(batch) for batch in make_batches(learner))
    return [learner.update(batches) for _ in range(UPDATES)], learner.state()


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_graph_gives_the_metrics_and_parameters_of_separate_kernels(
    options: dict[str, Any],
) -> None:
    (plain, plain_state), (graphed, graphed_state) = (
        run(graphs=False, **options),
        run(graphs=True, **options),
    )
    for left, right in zip(plain, graphed, strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-5)
    for name, value in plain_state.items():
        torch.testing.assert_close(graphed_state[name], value, rtol=1e-4, atol=1e-5, msg=name)
