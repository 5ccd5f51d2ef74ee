"""LeRobot's evaluation flags that Proctor lacks; benchmarks list their own.

Each is accepted with a note that explains why it has no effect, or refused with an alternative.
``tests/unit/config/test_lerobot_flags.py`` covers all flags of LeRobot 0.6.1.
"""

from __future__ import annotations

from proctor.lerobot_flags import LerobotFlag

OF_TRAINING = LerobotFlag(None, "it affects training only")
_UPLOADS = LerobotFlag(None, "an evaluation uploads nothing")
_RECORDING = "--record=DIR keeps all episodes as a LeRobot dataset"
_PUSHING = f"{_RECORDING}, and `proctor data push` uploads it"
_OFFERED = "the benchmark says what it offers; --rename_map={theirs: ours} changes names"
_CODE = "name the code itself: --{}.type=package.module:PLUGIN"

OF_ENVIRONMENTS = {
    "env.render_mode": LerobotFlag(
        ("rgb_array", None), "frames are rendered only where they are used"
    ),
    "env.disable_env_checker": LerobotFlag(None, "gymnasium's checker never runs"),
    "env.trust_remote_code": LerobotFlag(None, "only --env.type=hub runs code from the Hub"),
    "env.features": LerobotFlag((), _OFFERED),
    "env.features_map": LerobotFlag((), _OFFERED),
    "env.discover_packages_path": LerobotFlag((), _CODE.format("env")),
}
"""For benchmarks without a flag of that name."""
OLD_GROOT_FIELDS = (
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "lora_full_model",
    "video_backend",
    "balance_dataset_weights",
    "balance_trajectory_weights",
    "dataset_paths",
    "output_dir",
    "save_steps",
    "batch_size",
    "dataloader_num_workers",
    "report_to",
    "resume",
)
"""Fields of NVIDIA's former training script, which LeRobot keeps in GR00T's config."""
OF_OLD_GROOT = LerobotFlag(None, "LeRobot does not use it either")
OF_POLICIES = {
    "policy.push_to_hub": _UPLOADS,
    "policy.repo_id": _UPLOADS,
    "policy.private": _UPLOADS,
    "policy.tags": _UPLOADS,
    "policy.license": _UPLOADS,
    "policy.use_peft": LerobotFlag((False,), "a checkpoint says itself whether it is an adapter"),
    "policy.pretrained_path": LerobotFlag(
        (None,), "--policy.path takes a checkpoint together with its config"
    ),
    "policy.pretrained_revision": LerobotFlag(
        (), "a revision is that of a --policy.path on the Hub"
    ),
    "policy.compile_model": LerobotFlag((False,), "--policy.compile compiles the network"),
    "policy.compile_mode": LerobotFlag(None, "--policy.compile compiles in torch's own mode"),
    "policy.gradient_checkpointing": OF_TRAINING,
    "policy.empty_cameras": LerobotFlag(None, "missing cameras are not inputs"),
    "policy.action_feature_names": LerobotFlag(None, "a checkpoint's processors name its joints"),
    "policy.use_delta_joint_actions_aloha": LerobotFlag(
        (False,), "LeRobot does not implement it either"
    ),
    "policy.add_image_special_tokens": LerobotFlag((False,), "images get no special tokens"),
    "policy.prefix_length": LerobotFlag((-1,), "the prefix is never padded"),
    "policy.use_cache": LerobotFlag(None, "the KV cache is always used"),
    "policy.use_kv_cache": LerobotFlag(None, "the KV cache is always used"),
    "policy.async_prefetch": LerobotFlag(None, "LeRobot does not use it either"),
    "policy.concurrency": LerobotFlag(None, "actors and learner are processes of their own"),
    "policy.use_flash_attention": LerobotFlag(None, "torch chooses the attention kernel"),
    "policy.image_size": LerobotFlag(None, "the checkpoint's processors have the image sizes"),
    **{f"policy.{name}": OF_OLD_GROOT for name in OLD_GROOT_FIELDS},
    "policy.input_features": LerobotFlag((), _OFFERED),
    "policy.output_features": LerobotFlag((), _OFFERED),
    "policy.discover_packages_path": LerobotFlag((), _CODE.format("policy")),
}
OF_EVALUATIONS = {
    "eval.recording": LerobotFlag((False,), _RECORDING),
    "eval.recording_repo_id": LerobotFlag((None,), _PUSHING),
    "eval.recording_private": LerobotFlag((False,), _PUSHING),
}
_SIMULATED = "an episode is simulated, without waiting"
_SHOWN = "`proctor data view` shows the dataset"
_ENCODED = "it changes only how fast LeRobot writes images"
OF_RECORDINGS = {
    "dataset.num_episodes": LerobotFlag((), "use --record.n_episodes=N, demonstrations per task"),
    "dataset.single_task": LerobotFlag(
        (), "instructions are the benchmark's; `proctor data set-task` changes them"
    ),
    "dataset.fps": LerobotFlag((), "the benchmark has its own control frequency"),
    "dataset.episode_time_s": LerobotFlag((), "use --env.episode_length=STEPS"),
    "dataset.reset_time_s": LerobotFlag(None, _SIMULATED),
    "dataset.push_to_hub": LerobotFlag((False,), "`proctor data push` uploads it"),
    "dataset.private": LerobotFlag((False,), "`proctor data push --private` uploads it"),
    "dataset.tags": LerobotFlag((None,), "`proctor data push` uploads it"),
    "dataset.vcodec": LerobotFlag((), "use --dataset.codec=NAME"),
    "dataset.num_image_writer_processes": LerobotFlag(None, _ENCODED),
    "dataset.num_image_writer_threads_per_camera": LerobotFlag(None, _ENCODED),
    "dataset.video_encoding_batch_size": LerobotFlag(None, _ENCODED),
    "dataset.streaming_encoding": LerobotFlag(None, _ENCODED),
    "dataset.encoder_threads": LerobotFlag(None, _ENCODED),
    "display_data": LerobotFlag((False,), _SHOWN),
    "play_sounds": LerobotFlag(None, "there are no sounds"),
}
"""Flags of ``lerobot-record``, for a recording in simulation."""
RENAMED = {"policy.pretrained_revision": "policy.revision"}
"""LeRobot's names of flags, and ours."""
_PLUGIN = (
    "a gymnasium environment of it runs with --env.type=gym --env.id=PACKAGE:ID, and "
    "docs/tutorials/own_benchmark.md says how to add it"
)
ABSENT = {
    "gym_manipulator": "`proctor train-online` reads it; here use --env.type=gym_hil, or "
    "--robot.type=NAME for a robot",
    "isaaclab_arena": "use --env.type=hub --env.path=nvidia/isaaclab-arena-envs "
    "--trust_remote_code",
    "robomme": _PLUGIN,
    "vlabench": _PLUGIN,
}
"""Benchmarks of LeRobot that Proctor lacks, with what to use instead."""
