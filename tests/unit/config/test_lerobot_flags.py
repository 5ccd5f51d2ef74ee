"""Every flag of LeRobot's evaluation is done, taken with a note, or refused with what to use.

The list is made from LeRobot 0.6.1's dataclasses by ``tests/parity/lerobot_flags_side.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from proctor import plugins
from proctor.benchmarks.mujoco.render_config import ObservationType
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.lerobot.training import drop_lerobot_settings
from proctor.config.recording import RecordConfig
from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.evaluation.preparing import default_folder
from proctor.features import STATE
from proctor.fingerprint import ConfigUse
from proctor.policies.lerobot.checkpoint.checkpoint import idle_overrides, override
from proctor.policies.lerobot.config.families import FAMILIES, family
from tests.refusals import refuses

FLAGS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "lerobot_eval_flags.json").read_text()
)
BASE = {"policy.type": "random", "env.type": "fake"}
OURS = [name for name in FLAGS["env"] if name in plugins.BUILT_IN["benchmarks"]]
CHECKPOINTS = [name for name in FLAGS["policy"] if name in FAMILIES]


def typed(value: Any) -> str:
    """A value as it is written on a command line."""
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)


def built_or_refused(settings: dict[str, str]) -> EvalConfig | str:
    try:
        return build(EvalConfig, settings)
    except UsageError as error:
        return str(error)


def verdict(base: dict[str, str], name: str, value: Any) -> str:
    """What becomes of a flag."""
    came = built_or_refused({**base, name: typed(value)})
    if isinstance(came, str):
        assert came.startswith(f"--{name}=")
        return "refused"
    notes = came.notes
    assert all(note.startswith(f"--{name} changes nothing here: ") for note in notes)
    return "noted" if notes else "done"


def verdicts(base: dict[str, str], flags: dict[str, Any], section: str = "") -> dict[str, str]:
    return {name: verdict(base, f"{section}{name}", value) for name, value in flags.items()}


def by(kind: str, told: dict[str, str]) -> set[str]:
    return {name for name, what in told.items() if what == kind}


def test_the_common_flags_are_done_but_for_recordings_which_have_a_flag_of_their_own() -> None:
    pretrained = {"policy.path": "somewhere", "env.type": "fake"}
    hub = {"env.type": "hub", "policy.path": "somewhere"}
    told = verdicts(hub, FLAGS["top"])
    assert by("done", told) == {*FLAGS["top"]}
    assert build(EvalConfig, {**pretrained, "trust_remote_code": "false"}).notes == [
        "--env.trust_remote_code changes nothing here: only --env.type=hub runs code from the Hub"
    ]
    told = verdicts(BASE, FLAGS["eval"], "eval.")
    assert by("done", told) >= {"n_episodes", "batch_size", "use_async_envs"}
    assert by("refused", told) == set()
    with refuses(UsageError, "flag.unsupported") as refused:
        build(EvalConfig, {**BASE, "eval.recording": "true"})
    assert "--record=DIR" in str(refused.value)


NOTED = {"render_mode", "disable_env_checker", "fps"}
OF_ONE = {
    "libero": {"init_states", "hard_reset", "is_libero_plus"},
    "libero_plus": {"init_states", "hard_reset", "is_libero_plus"},
    "metaworld": {"multitask_eval"},
    "robocasa": {
        "obs_type",
        "camera_name",
        "visualization_height",
        "visualization_width",
        "obj_registries",
    },
    "robotwin": {
        "episode_length",
        "obs_type",
        "camera_names",
        "observation_height",
        "observation_width",
        "action_mode",
    },
}


@pytest.mark.parametrize("benchmark", OURS)
def test_every_flag_of_a_benchmark_is_done_or_taken_with_a_note(benchmark: str) -> None:
    told = verdicts({**BASE, "env.type": benchmark}, FLAGS["env"][benchmark], "env.")
    assert by("refused", told) == {"features", "features_map"}
    assert by("noted", told) == (NOTED | OF_ONE.get(benchmark, set())) & told.keys()


def test_a_benchmark_of_lerobots_that_is_not_there_says_what_to_use() -> None:
    absent = FLAGS["env"].keys() - plugins.known_plugins("benchmarks")
    assert absent, "all of them are there: the list of what to use can go"
    for name in absent:
        with refuses(UsageError, "env.unavailable") as refused:
            build(EvalConfig, {**BASE, "env.type": name})
        assert f"--env.type={name}" in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"env.type": "libero", "env.fps": "30"}, "--env.fps=30: LIBERO's robot is controlled 20"),
        ({"env.type": "metaworld", "env.fps": "30"}, "--env.fps=30: Meta-World is controlled 80"),
        ({"env.type": "libero", "env.init_states": "false"}, "--env.init_states=false: episodes"),
        ({"env.render_mode": "human"}, "--env.render_mode=human: "),
        ({"policy.pretrained_path": "x/y"}, "--policy.pretrained_path=x/y: --policy.path takes a"),
        ({"policy.use_peft": "true"}, "--policy.use_peft=true: a checkpoint says itself"),
        ({"policy.discover_packages_path": "mine"}, "--policy.discover_packages_path=mine: name"),
        ({"env.obs_type": "state", "env.type": "aloha"}, "--env.obs_type: got 'state' (choose pix"),
        ({"job_name": "a\x1bb"}, "--job_name: the path '00-00-00_a\\x1bb'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_use(
    flags: dict[str, str], reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build(EvalConfig, {**BASE, **flags})
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_flag_of_a_policy_is_done_or_taken_with_a_note(kind: str) -> None:
    told = verdicts({**BASE, "policy.type": kind}, FLAGS["policy"][kind], "policy.")
    assert by("refused", told) == {"input_features", "output_features"}
    of_training = {"push_to_hub", "optimizer_lr", "online_steps"} & told.keys()
    assert of_training <= by("noted", told)
    assert len(of_training) == 2
    assert {"use_amp", "device", "n_obs_steps"} <= by("done", told)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_training_is_read_from_lerobots_file_whatever_policy_it_is_of(kind: str) -> None:
    told = {"type": kind} | FLAGS["policy"][kind]
    if "rtc_config" in told:
        told["rtc_config"] = {"enabled": False}
    settings = drop_lerobot_settings({"policy": told, "dataset": {"repo_id": "a/b"}})
    built: Any = build(TrainConfig, settings)
    assert built.policy.type == kind
    if kind in ("smolvla", "xvla"):
        wrong = {"smolvla": {"prefix_length": 3}, "xvla": {"dtype": "bfloat16"}}[kind]
        with refuses(UsageError, "flag.unsupported") as refused:
            drop_lerobot_settings({"policy": told | wrong})
        assert next(iter(wrong)) in str(refused.value)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_so_are_those_of_a_checkpoint_whose_type_is_read_later(kind: str) -> None:
    plugin = family(kind)
    assert plugin is not None
    config: Any = plugin.config()
    for name, value in FLAGS["policy"][kind].items():
        settings = {"policy.path": "x", "env.type": "fake", f"policy.{name}": typed(value)}
        built: Any = built_or_refused(settings)
        if name in ("input_features", "output_features"):
            assert built.startswith(f"--policy.{name}=")
            continue
        left = built.policy.overrides
        assert left.keys() <= {name}
        if left and not idle_overrides(config, left):
            assert _is_a_field(config, left), f"{kind} refuses --policy.{name}"


def _is_a_field(config: Any, overrides: dict[str, Any]) -> bool:
    """Whether a checkpoint takes the flag; what it says of the rest of the config is no matter."""
    try:
        override(config, overrides, ConfigUse.EVALUATION)
    except UsageError as error:
        return "has no --policy" not in str(error)
    return True


def test_flags_that_change_nothing_for_one_reason_are_one_note() -> None:
    uploads = {"push_to_hub": False, "repo_id": "me/x", "private": None, "tags": ["a"]}
    settings = {"policy": {"path": "x", **uploads}, "env": {"type": "metaworld", "fps": 80}}
    assert build(EvalConfig, settings).notes == [
        "--policy.push_to_hub, --policy.repo_id, --policy.tags change nothing here: an evaluation "
        "uploads nothing",
        "--env.fps changes nothing here: Meta-World is controlled 80 times a second; see "
        "--video.fps",
    ]


def test_lerobots_flags_are_taken_by_a_recording_too() -> None:
    settings = {**BASE, "dataset.repo_id": "me/x", "policy.push_to_hub": "false"}
    assert len(build(RecordConfig, settings).notes) == 1


def test_notes_are_no_part_of_what_is_asked_for() -> None:
    noted = build(EvalConfig, {**BASE, "policy.push_to_hub": "false"})
    assert noted == build(EvalConfig, BASE)
    assert "notes" not in noted.as_dict()


def test_the_revision_of_a_checkpoint_has_two_names() -> None:
    settings = {"policy.path": "me/x", "env.type": "fake", "policy.pretrained_revision": "v1"}
    assert build(EvalConfig, settings).policy.revision == "v1"  # type: ignore[attr-defined]


def test_a_job_names_its_folder() -> None:
    folder = default_folder(build(EvalConfig, {**BASE, "job_name": "my/100%_job"}))
    assert folder.name.endswith("_my-100%_job")
    assert folder.parts[:2] == ("outputs", "eval")
    assert default_folder(build(EvalConfig, BASE)).name.endswith("_fake_random")


@pytest.mark.parametrize("benchmark", ["aloha", "metaworld", "pusht"])
def test_pictures_alone_are_offered_where_that_is_asked_for(benchmark: str) -> None:
    plugin = plugins.find_benchmark(benchmark)
    offered = {}
    for kind in ("pixels", "pixels_agent_pos"):
        config: Any = build(EvalConfig, {**BASE, "env.type": benchmark, "env.obs_type": kind}).env
        offered[kind] = plugin.make(config).features().keys()
    assert STATE in offered["pixels_agent_pos"]
    assert STATE not in offered["pixels"]
    if benchmark != "pusht":
        assert config.obs_type is ObservationType.PIXELS_AGENT_POS
        assert plugin.make(plugin.config()).features().keys() == offered["pixels_agent_pos"]


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_numbers_are_written_as_they_are_once_read(kind: str) -> None:
    """A training that is resumed reads its config.json, where 10 of a float is 10.0."""
    plugin = family(kind)
    assert plugin is not None
    hints = get_type_hints(plugin.config)
    values = vars(plugin.config()).items()
    floats = {name: value for name, value in values if "float" in str(hints.get(name))}
    numbers = [n for v in floats.values() for n in (v if isinstance(v, list) else [v])]
    assert floats or kind == "gaussian_actor", "whose numbers are in maps"
    assert not [n for n in numbers if type(n) is int]


def test_fields_of_a_checkpoint_are_changed_by_a_map_and_by_flags_together() -> None:
    base = {"policy.path": "x", "env.type": "fake", "policy.n_action_steps": "8"}
    built: Any = build(EvalConfig, base | {"policy.overrides": "{device: cpu}"})
    assert built.policy.overrides == {"device": "cpu", "n_action_steps": "8"}
    for wrong in ("{device: cpu", "cpu"):
        with refuses(UsageError, "flag.invalid-value") as refused:
            build(EvalConfig, base | {"policy.overrides": wrong})
        assert "--policy.overrides" in str(refused.value)
