"""Policy and interface are compared before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from small_policies import ACTION, IMAGE, INPUTS, OFFERED, STATE, offering, small_act, without
from tests.refusals import refuses

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.benchmarks.fake import FakeConfig
from proctor.errors import SpecMismatch
from proctor.features import ActionSpec, Feature, FeatureKind
from proctor.policies.act.config import ActConfig
from proctor.policies.compatibility import (
    check_cameras,
    check_compatible,
    check_offered,
    default_inputs,
)
from proctor.policies.lerobot.config.config import decode_config, encode_config

WRIST = "observation.images.wrist"


def mismatch(config, interface, code, rename_map=None) -> str:
    """Return the text of the error with ``code`` that the comparison raises."""
    with refuses(SpecMismatch, code) as refused:
        check_compatible(config.features, interface, rename_map or {})
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_fitting_policy_passes():
    check_compatible(small_act().features, OFFERED, {})


def test_another_action_size():
    mismatch(small_act(), replace(OFFERED, action=ActionSpec(7)), "policy.action-size-mismatch")


def test_another_state_size():
    interface = offering(STATE, FeatureKind.STATE, (8,))
    assert STATE in mismatch(small_act(), interface, "policy.state-size-mismatch")


def test_no_state():
    message = mismatch(small_act(), without(STATE), "policy.missing-input")
    assert STATE in message
    assert IMAGE in message


@pytest.mark.parametrize(
    ("benchmark", "advice"),
    [
        ("fake", ["--env.image_size=64"]),
        ("so101", ["--env.observation_height=64", "--env.observation_width=64"]),
        ("robotwin", []),
    ],
)
def test_another_image_size_names_the_benchmarks_flags(benchmark, advice):
    config = plugins.find_benchmark(benchmark).config()
    flags = interface_of(plugins.benchmark_maker(FakeConfig())(), config).image_size_flags
    other = offering(IMAGE, FeatureKind.VISUAL, (480, 480, 3))
    interface = replace(other, image_size_flags=flags)
    message = mismatch(small_act(), interface, "policy.image-size-mismatch")
    assert "480x480" in message
    assert [word for word in message.split() if word.startswith("--")] == advice


def test_one_flag_for_both_sides_is_no_help_for_other_images():
    camera = Feature(FeatureKind.VISUAL, (64, 80, 3), "uint8")
    interface = replace(OFFERED, image_size_flags=("--env.image_size",))
    config = small_act(input_features={**INPUTS, IMAGE: camera})
    assert "--env" not in mismatch(config, interface, "policy.image-size-mismatch")


def test_one_camera_too_many():
    camera = Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8")
    config = small_act(input_features={**INPUTS, WRIST: camera})
    assert "--rename_map" not in mismatch(config, OFFERED, "policy.missing-input")
    interface = offering("observation.image2", FeatureKind.VISUAL, (64, 64, 3))
    message = mismatch(config, interface, "policy.missing-input")
    assert '--rename_map=\'{"observation.image2": "observation.images.wrist"}\'' in message
    assert "--env.camera_name_mapping" in message
    check_compatible(config.features, interface, {"observation.image2": WRIST})


def test_a_blind_benchmark():
    assert IMAGE in mismatch(small_act(), without(IMAGE), "policy.missing-input")


def test_renaming_what_is_not_there():
    message = mismatch(small_act(), OFFERED, "flag.rename-unknown", {"observation.top": IMAGE})
    assert "observation.top" in message


def test_an_untrained_policy_looks_at_cameras_and_state():
    assert default_inputs(OFFERED) == INPUTS
    env = "observation.environment_state"
    blind = offering(env, FeatureKind.ENV, (39,), without(IMAGE))
    assert list(default_inputs(blind)) == [STATE, env]
    assert ACTION["action"].shape == (3,)


def test_channels_come_first_in_the_files_and_nowhere_else():
    config = small_act()
    assert config.input_features[IMAGE] == OFFERED.features[IMAGE]
    written = encode_config(config, "0.6")
    assert json.loads(written)["input_features"][IMAGE] == {"type": "VISUAL", "shape": [3, 64, 64]}
    read = decode_config(json.loads(written), ActConfig, "config.json")
    assert read.input_features == config.input_features
    assert encode_config(read, "0.6") == written


def test_a_policy_that_names_its_inputs_only_is_compared_too():
    check_offered([STATE], OFFERED, "policy 'circles'")
    with refuses(SpecMismatch, "policy.missing-input") as refused:
        check_offered(["observation.stat"], OFFERED, "policy 'circles'")
    for word in ("policy 'circles'", "'observation.stat'", "'observation.state'"):
        assert word in str(refused.value)


def test_cameras_are_not_left_out_on_both_sides():
    interface = offering(WRIST, FeatureKind.VISUAL, (8, 8, 3))
    check_cameras([], [STATE], interface, {})
    check_cameras([IMAGE], [STATE, WRIST], without(IMAGE, interface), {})
    check_cameras(["observation.images.empty_camera_0"], [IMAGE], interface, {})
    with refuses(SpecMismatch, "policy.ambiguous-cameras") as caught:
        check_cameras(["observation.images.hand"], [STATE, IMAGE], interface, {})
    assert """--rename_map='{"observation.images.wrist": "observation.images.hand"}'""" in str(
        caught.value
    )
