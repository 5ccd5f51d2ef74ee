"""The Python door to what ``proctor eval`` does."""

from __future__ import annotations

import warnings
from typing import Any

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.run import Evaluation, prepare, run_evaluation
from proctor.machine.streams import open_what_is_closed


def evaluate(**settings: Any) -> Evaluation:
    """Evaluate a policy and return the run.

    The settings are those of the command line, nested as in a config file::

        evaluate(policy={"type": "expert"}, env={"type": "metaworld", "task": "reach-v3"},
                 eval={"n_episodes": 10}, output_dir="outputs/reach")

    Raises:
        ProctorError: with one line that says what to change.
    """
    open_what_is_closed()
    for name in ("output_dir", "against", "record"):
        if name in settings:
            settings[name] = str(settings[name])
    config = build(EvalConfig, settings)
    evaluation = run_evaluation(prepare(config), settings)
    for warning in evaluation.filmed.warnings:
        warnings.warn(warning, stacklevel=2)
    return evaluation
