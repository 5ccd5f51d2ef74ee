"""Every protocol gives the same episodes as in process, also several at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proctor.commands.evaluation.serve import opened
from proctor.config.builder import build
from proctor.config.serving import ServeConfig
from proctor.evaluation.run import Evaluation
from proctor.serving.server import serving
from tests.conftest import digests

Run = Callable[..., Evaluation]
PROTOCOLS = ["openpi", "vla-eval", "groot", "lerobot"]
LOOKING = "tests.unit.protocols.serving:LOOKING"


@pytest.fixture
def here(run: Run) -> Run:
    """Evaluate with all simulators in this process."""
    return lambda **flags: run(eval__use_async_envs=False, env__episode_length=12, **flags)


def test_episodes_over_every_wire_are_the_same_bits_as_in_process(here: Run) -> None:
    flags = {"policy.type": LOOKING, "env.type": "fake"}
    wanted = digests(here(policy__type=LOOKING))
    config = build(ServeConfig, {**flags, "protocol": PROTOCOLS, "port": [0] * len(PROTOCOLS)})
    with opened(config) as service, serving(config.endpoints, service, config.limits(None)) as urls:
        for url in urls:
            assert digests(here(policy__type="remote", policy__url=url)) == wanted, url
