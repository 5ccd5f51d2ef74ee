"""Bad gradients are skipped, and a training that diverged tells how."""

from __future__ import annotations

import json
import math

import pytest

from tests.refusals import refuses

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")

from proctor.errors import UsageError  # noqa: E402
from proctor.training.distributed import DistributedContext  # noqa: E402
from proctor.training.divergence import StepRecord, explain_divergence  # noqa: E402
from proctor.training.gradient_guard import GradientGuard, update_unless  # noqa: E402
from proctor.training.metrics import DivergedTraining, MetricTracker, Update  # noqa: E402

CPU = torch.device("cpu")


def judged(guard: GradientGuard, norms) -> list[bool]:
    return [bool(guard.is_bad(torch.tensor(float(norm)))) for norm in norms]


def test_only_gradients_that_are_not_finite_are_bad_without_a_factor():
    guard = GradientGuard(0.0, CPU)
    assert judged(guard, [1.0] * 200 + [1e9, math.nan, math.inf]) == [False] * 201 + [True] * 2
    assert guard.state() is None


def test_a_norm_far_above_the_average_of_accepted_ones_is_bad():
    guard = GradientGuard(10.0, CPU)
    assert not any(judged(guard, [1.0, 3.0] * 50))  # average 2
    assert judged(guard, [19.0, 50.0, math.nan, 50.0, 2.0]) == [False, True, True, True, False]
    assert 2.0 < guard.state()["mean"] < 2.2  # 19 counts, 50 does not


def test_nothing_is_compared_before_there_is_an_average():
    guard = GradientGuard(2.0, CPU)
    assert not any(judged(guard, [10.0**n for n in range(20)]))


def test_a_resumed_guard_judges_alike():
    norms = torch.rand(300, generator=torch.Generator().manual_seed(0)).add(0.1).tolist()
    whole, first, second = (GradientGuard(1.5, CPU) for _ in range(3))
    found = judged(first, norms[:150])
    second.load(json.loads(json.dumps(first.state())), "file")
    assert found + judged(second, norms[150:]) == judged(whole, norms)
    assert second.state() == whole.state()
    with refuses(UsageError, "checkpoint.invalid-state"):
        second.load({"mean": 1.0}, "file")


@pytest.mark.parametrize("fused", [True, False])
def test_a_skipped_update_changes_neither_weights_nor_moments(fused):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    for bad in (False, True, False):
        weight.grad = torch.full_like(weight, math.nan if bad else 1.0)
        before = weight.detach().clone()
        update_unless(optimizer, torch.tensor(bad), sharded=False)
        assert torch.equal(weight, before) == bad
    assert optimizer.state[weight]["step"] == 2
    assert optimizer.state[weight]["exp_avg"].isfinite().all()


def test_many_skipped_updates_in_a_row_are_a_divergence_across_reports():
    tracker = MetricTracker(CPU, DistributedContext())
    step = 0
    for skipped in [False] * 5 + [True] * 19:
        step += 1
        tracker.add_step(1, torch.tensor(0.5), {}, made(9.0, skipped))
        tracker.collect(step, 1e-3)
    tracker.add_step(1, torch.tensor(0.5), {}, made(9.0, skipped=True))
    with pytest.raises(DivergedTraining) as found:
        tracker.collect(step + 1, 1e-3)
    assert (found.value.code, found.value.step) == ("training.gradient-spikes", 6)
    assert [record.step for record in tracker.last_steps(step + 1)] == list(range(1, 26))


def made(norm: float, skipped: bool) -> Update:
    return Update(torch.tensor(norm), torch.tensor(skipped))


def records(losses) -> list[StepRecord]:
    return [StepRecord(100 + n, loss, 1.0, skipped=False) for n, loss in enumerate(losses)]


def test_a_rising_loss_is_told_from_one_bad_step():
    rising = explain_divergence(records([0.2] * 60 + [0.4, 0.9, 3.0, math.nan]), 163)
    assert rising.last_good == 159
    assert "from 0.2 at step 159 to 3 at step 162" in rising.text
    sudden = explain_divergence(records([0.2, 0.21] * 30 + [math.nan]), 160)
    assert sudden.last_good == 159
    assert "as usual" in sudden.text
    rows = [json.loads(line) for line in sudden.to_jsonl().splitlines()]
    assert (rows[-1]["step"], rows[-1]["loss"], rows[-2]["loss"]) == (160, None, 0.21)


def test_the_checkpoint_is_in_doubt_if_the_first_step_after_it_is_bad():
    assert explain_divergence(records([math.nan]), 100).last_good == 98
    first = explain_divergence([StepRecord(1, math.nan, 1.0, skipped=True)], 1)
    assert first.last_good == 0
    assert "statistics" in first.text
