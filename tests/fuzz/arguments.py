"""Fuzzing of command-line flags and config files of every command."""

from __future__ import annotations

import json
from functools import cache

import yaml
from hypothesis import strategies as st

from proctor import plugins
from proctor.commands.shared.verbs import VERBS
from proctor.config.builder import own_flags
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.parsing import Flag, flags_of
from tests.fuzz.hostile import Draw, mutated, numbers, spoiled, texts, values, words
from tests.fuzz.sandbox import Sandbox

BASES = [
    ("fake", "random"), ("fake", "zero"), ("fake", "expert"), ("fake", "remote"),
    ("metaworld", "random"),
]  # fmt: skip
NETWORKS = [("fake", "act"), ("fake", "diffusion")]
_SMALL = {
    "act": ["dim_model=16", "n_heads=2", "dim_feedforward=16", "n_encoder_layers=1",
            "n_vae_encoder_layers=1"],
    "diffusion": ["down_dims=[8,8]", "n_groups=4", "horizon=8", "n_action_steps=4"],
}  # fmt: skip
"""Flags that make an untrained policy quick to make."""


@cache
def flags_for(env: str, policy: str) -> list[Flag]:
    """Return all flags of an evaluation but those that would open a port of this machine."""
    flags = [
        *own_flags(EvalConfig),
        *flags_of(plugins.find_benchmark(env).config, "env."),
        *flags_of(plugins.find_policy(policy).config, "policy."),
    ]
    return [flag for flag in flags if not flag.name.startswith("live")]


@st.composite
def eval_words(draw: Draw, bases: list[tuple[str, str]]) -> list[str]:
    """Return the arguments of an evaluation with one to three hostile flags."""
    env, policy = draw(st.sampled_from(bases))
    said = [f"--env.type={env}", f"--policy.type={policy}", "--eval.n_episodes=2"]
    said += [f"--policy.{flag}" for flag in _SMALL.get(policy, [])]
    flags = flags_for(env, policy)
    for _ in range(draw(st.integers(1, 3))):
        flag = draw(st.sampled_from([*flags, None]))
        name = draw(texts) if flag is None else flag.name
        number = flag is not None and flag.inner in (int, float)
        value = draw(numbers if number and draw(st.integers(0, 3)) else values)
        text = value if isinstance(value, str) else json.dumps(value)
        said = [word for word in said if not word.startswith(f"--{name}=")]
        said += draw(st.sampled_from([[f"--{name}={text}"], [f"--{name}", text]]))
    return [words(word) for word in said]


def eval_flags(draw: Draw, sandbox: Sandbox) -> None:
    """Flags of ``eval``."""
    sandbox.run_command(["eval", *draw(eval_words(BASES))])


def network_flags(draw: Draw, sandbox: Sandbox) -> None:
    """Flags of untrained networks, which set their sizes."""
    sandbox.run_command(["eval", *draw(eval_words(NETWORKS))])


_OTHERS = {
    "report": ["output", "help"],
    "compare": ["fail-if-worse", "alpha", "json", "html", "unpaired", "help"],
    "view": ["port", "host", "help"],
    "audit": ["episodes", "help", "policy.type", "env.type"],
    "list": ["env.type", "env.task", "env.task_ids", "help"],
    "doctor": [],
    "info": [],
}


_EDITS = [verb for verb in VERBS["data"] if verb not in ("cache", "view", "push", "pull")]
_EDIT_FLAGS = [
    "episodes", "output", "in_place", "splits", "task", "tasks", "images", "codec", "json", "mend",
    "fast", "operation.type", "repo_id", "root", "help",
]  # fmt: skip


def data_words(draw: Draw, sandbox: Sandbox) -> None:
    """Arguments of ``proctor data`` that name no dataset."""
    said = [words(draw(texts)) for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.one_of(st.sampled_from(_EDIT_FLAGS), texts))
        said.append(words(f"--{name}={draw(texts)}"))
    sandbox.run_command(["data", draw(st.sampled_from(_EDITS)), *said])


def other_words(draw: Draw, sandbox: Sandbox) -> None:
    """Arguments of the other commands that name no run."""
    command = draw(st.sampled_from([*_OTHERS, None]))
    if command is None:
        sandbox.run_command(
            [words(draw(texts)), *(words(draw(texts)) for _ in range(draw(st.integers(0, 2))))]
        )
        return
    said = [words(draw(texts)) for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.one_of(st.sampled_from([*_OTHERS[command], "x"]), texts))
        said.append(words(f"--{name}={draw(texts)}"))
    if command == "view":
        said.append("/nowhere")  # a folder that is there would be served until Ctrl-C
    if command in ("doctor", "info"):
        said.append("--x")  # without a word they examine this machine, which takes seconds
    sandbox.run_command([command, *said], codes=(0, 2))


VALID_CONFIG = {
    "policy": {"type": "random", "pad_to": None},
    "env": {"type": "fake", "n_tasks": 2, "task_ids": [0, 1], "faults": {"0/0/0": "raise"}},
    "eval": {"n_episodes": 2, "episodes": [0], "batch_size": 1, "stop_when": "never"},
    "video": {"episodes": 0, "which": "first", "fps": 10.0},
    "seed": 7,
    "alpha": 0.05,
    "resume": False,
    "output_dir": "run",
}
_YAML = [
    "a: &a [*a]", "? [a]\n: b", "env: !!python/object/apply:os.system ['touch pwned']",
    "!!python/module:os", "a: !!binary x", "a: !!timestamp 2001-99-99", "<<: {a: b}", "<<: [1]",
    "1: 2",
    "a: 2024-01-01", "null: x", "? {a: b}\n: c", "---\na: b\n---\nc: d", "a: !!set {b}", "%TAG ! x",
    "a: &x [1,1,1,1]\nb: &y [*x,*x,*x,*x]\nc: &z [*y,*y,*y,*y]\nenv: [*z,*z,*z,*z]", "a: 0o9",
    "a: 1:60",
    "- " * 3000, "{" * 3000, "[" * 100_000, "env: !!float x", "env: {type: !!int fake}", "? ", "*x",
    "a: ! x", "env: {type: fake}\npolicy: {type: random}\n!!null : 1", "env.type: fake\nenv: fake",
    "b: !!omap [1]", "env: !!pairs [a]", "=: 1", "a: =", "a: <<", "env: {<<: 1}",
]  # fmt: skip


def config_files(draw: Draw, sandbox: Sandbox) -> None:
    """Config files, YAML and JSON."""
    tree = draw(mutated(VALID_CONFIG))
    how = draw(st.sampled_from(["json", "json", "yaml", "spoiled", "tricks"]))
    if how == "tricks":
        blob = draw(st.sampled_from(_YAML)).encode()
    elif how == "yaml":
        blob = yaml.safe_dump(tree, allow_unicode=False).encode()
    else:
        blob = json.dumps(tree).encode()
        blob = draw(spoiled(blob)) if how == "spoiled" else blob
    file = sandbox.inputs / "settings.yaml"
    file.write_bytes(blob)
    flags = draw(st.sampled_from([[], ["--seed=3"], ["--env.type=fake", "--policy.type=zero"]]))
    sandbox.run_command(["eval", f"--config_path={file}", "--live=false", *flags])
