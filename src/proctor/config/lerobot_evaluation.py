"""LeRobot's evaluation flags that are no flags here, beside those that a benchmark knows itself.

Each is taken with a note that says why it changes nothing, or refused with what to use instead.
``tests/unit/config/test_lerobot_flags.py`` holds all that LeRobot 0.6.1 has.
"""

from __future__ import annotations

from proctor.foreign import Foreign

OF_TRAINING = Foreign(None, "how the policy is trained")
_UPLOADS = Foreign(None, "an evaluation uploads nothing")
_RECORDING = "--record=DIR keeps all episodes as a LeRobot dataset"
_PUSHING = f"{_RECORDING}, and `proctor data push` uploads it"
_OFFERED = "the benchmark says what it offers; --rename_map={theirs: ours} changes names"
_CODE = "name the code itself: --{}.type=package.module:PLUGIN"

OF_ENVIRONMENTS = {
    "env.render_mode": Foreign(("rgb_array", None), "worlds are drawn where somebody looks"),
    "env.disable_env_checker": Foreign(None, "gymnasium's checker runs in no evaluation"),
    "env.trust_remote_code": Foreign(None, "only --env.type=hub runs code from the Hub"),
    "env.features": Foreign((), _OFFERED),
    "env.features_map": Foreign((), _OFFERED),
    "env.discover_packages_path": Foreign((), _CODE.format("env")),
}
"""For benchmarks that have no flag of the name."""
OF_POLICIES = {
    "policy.push_to_hub": _UPLOADS,
    "policy.repo_id": _UPLOADS,
    "policy.private": _UPLOADS,
    "policy.tags": _UPLOADS,
    "policy.license": _UPLOADS,
    "policy.use_peft": Foreign((False,), "a checkpoint says itself whether it is an adapter"),
    "policy.pretrained_path": Foreign(
        (None,), "--policy.path takes a checkpoint together with its config"
    ),
    "policy.pretrained_revision": Foreign((), "a revision is that of a --policy.path on the Hub"),
    "policy.compile_model": Foreign((False,), "--policy.compile compiles the network"),
    "policy.compile_mode": Foreign(None, "--policy.compile compiles in torch's own mode"),
    "policy.gradient_checkpointing": OF_TRAINING,
    "policy.empty_cameras": Foreign(None, "a camera that is not there is not looked at"),
    "policy.action_feature_names": Foreign(None, "a checkpoint's steps name its joints"),
    "policy.use_delta_joint_actions_aloha": Foreign((False,), "LeRobot has no such actions either"),
    "policy.add_image_special_tokens": Foreign((False,), "pictures have no tokens around them"),
    "policy.prefix_length": Foreign((-1,), "what is seen and read is as long as it is"),
    "policy.use_cache": Foreign(None, "nothing is computed twice in any case"),
    "policy.use_kv_cache": Foreign(None, "nothing is computed twice in any case"),
    "policy.input_features": Foreign((), _OFFERED),
    "policy.output_features": Foreign((), _OFFERED),
    "policy.discover_packages_path": Foreign((), _CODE.format("policy")),
}
OF_EVALUATIONS = {
    "eval.recording": Foreign((False,), _RECORDING),
    "eval.recording_repo_id": Foreign((None,), _PUSHING),
    "eval.recording_private": Foreign((False,), _PUSHING),
}
RENAMED = {"policy.pretrained_revision": "policy.revision"}
"""LeRobot's name to ours."""
_PLUGIN = (
    "a gymnasium environment of it runs with --env.type=gym --env.id=PACKAGE:ID, and "
    "docs/adding_a_benchmark.md says how to add it"
)
ABSENT = {
    "gym_manipulator": "robots are not driven here; gym_hil's worlds run with --env.type=gym "
    "--env.id=gym_hil:ID",
    "isaaclab_arena": "use --env.type=hub --env.path=nvidia/isaaclab-arena-envs "
    "--trust_remote_code",
    "libero_plus": "--env.type=libero has LIBERO's own 130 tasks",
    "robocasa": _PLUGIN,
    "robomme": _PLUGIN,
    "robotwin": _PLUGIN,
    "vlabench": _PLUGIN,
}
"""LeRobot's benchmarks that are not there, with what to use."""
