"""Bad gradients are skipped, and a training that diverged tells how."""

from __future__ import annotations

import json
import math

import pytest

from tests.refusals import refuses

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")

from proctor.errors import UsageError  # noqa: E402
from proctor.training.distributed import DistributedContext  # noqa: E402
from proctor.training.metrics.metrics import DivergedTraining, MetricTracker, Update  # noqa: E402
from proctor.training.optim.divergence import (  # noqa: E402
    RiseWatch,
    StepRecord,
    explain_divergence,
)
from proctor.training.optim.gradient_guard import GradientGuard, update_unless  # noqa: E402

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


def course(*parts: tuple[int, float, float]) -> list[StepRecord]:
    """Return steps from 1 on; a part is (steps, loss, gradient norm), with a little noise."""
    noise = torch.rand(10_000, generator=torch.Generator().manual_seed(0)).tolist()
    found: list[StepRecord] = []
    for steps, loss, norm in parts:
        for _ in range(steps):
            by = 0.8 + 0.4 * noise[len(found)]
            found.append(StepRecord(len(found) + 1, loss * by, norm * by, skipped=False))
    return found


def test_a_loss_that_rises_with_its_gradients_is_a_divergence_once():
    # As in the run of docs/measurements.md that reached 42,764 steps before.
    watch, steps = RiseWatch(), course((600, 0.102, 0.63), (400, 0.21, 13.0), (300, 0.16, 8.0))
    assert watch.newly_risen(steps[:500]) is None
    assert watch.newly_risen(steps[:600]) is None
    rise = watch.newly_risen(steps[:700])
    assert rise is not None
    assert 570 <= rise.last_good <= 600
    assert "the gradient norm from 0.6" in rise.text
    assert rise.records[-1].step == 700
    assert watch.newly_risen(steps[:800]) is None, "it was said"


@pytest.mark.parametrize(
    ("why", "parts"),
    [
        ("a larger dataset raises the loss", [(500, 0.14, 1.0), (200, 0.2, 1.1)]),
        ("gradients grow while the loss falls", [(500, 0.14, 1.0), (200, 0.12, 6.0)]),
        ("only a few steps are bad", [(500, 0.14, 1.0), (20, 2.0, 50.0), (50, 0.14, 1.0)]),
        ("a training begins", [(20, 9.0, 90.0), (300, 1.0, 5.0), (300, 0.5, 2.0)]),
        ("there is nothing to compare with", [(150, 0.1, 1.0), (60, 1.0, 10.0)]),
    ],
)
def test_what_is_no_divergence(why, parts):
    steps, watch = course(*parts), RiseWatch()
    for end in range(50, len(steps) + 1, 50):
        assert watch.newly_risen(steps[:end]) is None, why


def test_a_second_rise_is_said_too():
    parts = (600, 0.1, 0.6), (50, 0.2, 6.0), (600, 0.1, 0.6), (50, 0.2, 6.0)
    steps, watch = course(*parts), RiseWatch()
    said = [watch.newly_risen(steps[:end]) for end in range(50, len(steps) + 1, 50)]
    assert [rise.last_good // 100 for rise in said if rise is not None] == [5, 12]


def test_a_rise_of_norms_that_alternate_is_said():
    steps = [
        StepRecord(n, 0.1 if n <= 201 else 0.2, 1.0 if n % 2 else 100.0, skipped=False)
        for n in range(1, 252)
    ]
    rise = RiseWatch().newly_risen(steps)
    assert rise is not None
    assert rise.last_good == 1


def test_the_checkpoint_is_in_doubt_if_the_first_step_after_it_is_bad():
    assert explain_divergence(records([math.nan]), 100).last_good == 98
    first = explain_divergence([StepRecord(1, math.nan, 1.0, skipped=True)], 1)
    assert first.last_good == 0
    assert "statistics" in first.text
