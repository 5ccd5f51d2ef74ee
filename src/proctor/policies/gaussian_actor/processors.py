"""Pre- and postprocessor of a new Gaussian actor, from the statistics in its config.

Online training has no dataset whose statistics it could compute: LeRobot keeps them in config.json.
"""

from __future__ import annotations

import torch

from proctor.features import Feature, FeatureKind
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.lerobot.processors.processors import Pipeline, Stats


def config_stats(config: GaussianActorConfig) -> Stats:
    """Return the config's statistics of its inputs and its continuous action.

    Features without statistics are not normalised, as in LeRobot.
    """
    features = {**config.input_features, **config.output_features}
    given = config.dataset_stats or {}
    return {
        key: {name: _statistic(values, feature) for name, values in given[key].items()}
        for key, feature in features.items()
        if key in given
    }


def _statistic(values: list[float], feature: Feature) -> torch.Tensor:
    """Return a statistic as a tensor; one number for each channel of an image is [C, 1, 1]."""
    made = torch.tensor(values, dtype=torch.float32)
    return made.reshape(-1, 1, 1) if feature.kind is FeatureKind.VISUAL else made


def make_pipelines(config: GaussianActorConfig) -> tuple[Pipeline, Pipeline]:
    """Return the pre- and postprocessor with the config's statistics."""
    stats = config_stats(config)
    return default_pipelines(config, stats, stats)
