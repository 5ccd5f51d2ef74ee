"""What a policy sets for its own computing, nobody else notices."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from proctor.policies.runtime.numerics import inference_numerics, step_numerics
from proctor.policies.runtime.runner import Runner, make_runner

CUDA = torch.device("cuda")


def settings():
    backends = torch.backends
    return (
        backends.cudnn.benchmark,
        backends.cudnn.deterministic,
        backends.cuda.matmul.allow_tf32,
        getattr(backends.cuda.matmul, "fp32_precision", None),
    )


@pytest.fixture(params=[(True, False, False), (False, True, True)], ids=str)
def before(request):
    """The settings of a training, say; they are put back."""
    found = settings()
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    cudnn.benchmark, cudnn.deterministic, matmul.allow_tf32 = request.param
    yield settings()
    cudnn.benchmark, cudnn.deterministic, matmul.allow_tf32 = found[:3]
    if found[3] is not None:
        matmul.fp32_precision = found[3]


def test_the_context_sets_what_evaluations_compute_with_and_puts_back_what_was_there(before):
    with inference_numerics(CUDA):
        assert settings()[:3] == (False, True, True)
    assert settings() == before


def test_the_settings_are_put_back_after_an_error(before):
    with pytest.raises(ValueError, match="weights"), inference_numerics(CUDA):
        raise ValueError("weights are gone")
    assert settings() == before


def test_they_hold_until_the_last_of_several_threads_is_done(before):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with inference_numerics(CUDA):
            inside.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with inference_numerics(CUDA):
        thread.start()
        assert inside.wait(60)
    assert settings()[:3] == (False, True, True)
    leave.set()
    thread.join()
    assert settings() == before


def test_making_and_using_a_runner_leaves_the_settings_alone(before, monkeypatch):
    monkeypatch.setattr("proctor.policies.runtime.runner.GraphRunner", Runner)
    make_runner(lambda rows: rows["x"], CUDA, None)
    assert settings() == before
    seen = []

    def forward(rows):
        seen.append(settings()[:3])
        return rows["x"]

    runner = Runner(forward, CUDA, (1,))
    monkeypatch.setattr(
        runner, "run_piece", lambda piece, n, size: forward({"x": torch.zeros(n, 1)})
    )
    runner({"x": np.zeros((2, 1), np.float32)})
    assert seen == [(False, True, True)] * 2
    assert settings() == before


@pytest.mark.parametrize("context", [inference_numerics, step_numerics])
def test_what_torch_switches_off_in_a_call_is_on_again_after_it(context):
    mkldnn = torch.backends.mkldnn
    before = mkldnn.enabled
    try:
        mkldnn.set_flags(True)
        with context(torch.device("cpu")):
            mkldnn.set_flags(False)  # as a product in bfloat16 does on a CPU that has none
        assert mkldnn.enabled
    finally:
        mkldnn.set_flags(before)
