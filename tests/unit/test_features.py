"""Features of benchmarks, datasets and policies fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proctor import features
from proctor.benchmarks.base import interface_of
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.features import Feature, FeatureKind, from_info, to_info

SOURCES = Path(features.__file__).parent


def info(dtype: str, shape: list[int], names: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "names": names}


AXES = ["height", "width", "channels"]


@pytest.mark.parametrize(
    ("key", "entry", "feature"),
    [
        (
            "observation.state",
            info("float32", [3], ["x", "y", "grip"]),
            Feature(FeatureKind.STATE, (3,), "float32", ("x", "y", "grip")),
        ),
        (
            "observation.environment_state",
            info("float64", [39]),
            Feature(FeatureKind.ENV, (39,), "float64"),
        ),
        ("action", info("float32", [2]), Feature(FeatureKind.ACTION, (2,), "float32")),
        ("next.reward", info("float32", [1]), Feature(FeatureKind.REWARD, (1,), "float32")),
        ("subtask", info("language", [1]), Feature(FeatureKind.LANGUAGE, (1,), "language")),
        (
            "observation.images.top",
            info("video", [64, 96, 3], AXES),
            Feature(FeatureKind.VISUAL, (64, 96, 3), "uint8"),
        ),
        (
            "observation.film",
            info("video", [64, 96, 3], AXES),
            Feature(FeatureKind.FILM, (64, 96, 3), "uint8"),
        ),
    ],
)
def test_a_feature_round_trips_through_info_json(
    key: str, entry: dict[str, object], feature: Feature
) -> None:
    assert from_info(key, entry) == feature
    assert to_info(feature) == entry


@pytest.mark.parametrize(
    ("shape", "names"),
    [([64, 96, 3], ["height", "width", "channel"]), ([3, 64, 96], ["channels", "height", "width"])],
)
def test_the_third_axis_name_says_whether_channels_come_last(
    shape: list[int], names: list[str]
) -> None:
    found = from_info("observation.image", info("image", shape, names))
    assert found == Feature(FeatureKind.VISUAL, (64, 96, 3), "uint8")


def test_motor_names_of_older_datasets_are_read() -> None:
    found = from_info("action", info("float32", [2], {"motors": ["waist", "elbow"]}))
    assert found == Feature(FeatureKind.ACTION, (2,), "float32", ("waist", "elbow"))


@pytest.mark.parametrize("key", ["timestamp", "frame_index", "task_index", "next.done"])
def test_bookkeeping_columns_are_not_features(key: str) -> None:
    assert from_info(key, info("int64", [1])) is None


def test_an_interface_holds_all_features_of_a_benchmark() -> None:
    benchmark = Fake(FakeConfig(n_tasks=2, image_size=8))
    interface = interface_of(benchmark)
    assert interface.name == "fake"
    assert interface.features == benchmark.features()
    assert interface.action == benchmark.action
    assert interface.fps == benchmark.tasks()[0].fps
    assert interface.scripts is not None
    assert list(interface.scripts.tasks) == benchmark.tasks()
    assert interface.scripts.inputs == benchmark.expert_inputs


def test_every_key_is_spelled_out_once() -> None:
    """A second spelling is a second definition: it can be wrong alone."""
    keys = [
        features.ACTION, features.STATE, features.ENVIRONMENT_STATE, features.IMAGE,
        features.IMAGES, features.FILM, features.REWARD,
    ]  # fmt: skip
    spelled = re.compile(r'^(?:[A-Z_]+) = "(' + "|".join(map(re.escape, keys)) + r')"', re.M)
    lived = re.compile(r'"(observation\.(?:state|environment_state|image|images\.|film))"')
    for file in SOURCES.rglob("*.py"):
        if file.name != "features.py":
            text = file.read_text()
            assert not spelled.search(text), f"{file} defines a key of its own"
            assert not lived.search(text), f"{file} spells a key out"
