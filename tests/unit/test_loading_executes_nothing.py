"""Nothing that Proctor reads can run code: what could do so is not called anywhere in ``src``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "proctor"
DANGEROUS_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib",
"jsonpickle"}  # fmt: skip
DANGEROUS_CALLS = {
    "eval", "exec", "compile", "__import__", "yaml.load", "yaml.load_all", "yaml.full_load",
    "yaml.unsafe_load", "torch.load", "torch.jit.load", "torch.package.PackageImporter", "np.load",
    "numpy.load", "runpy.run_path", "runpy.run_module", "os.system", "os.popen", "input",
    "importlib.import_module", "types.FunctionType", "code.interact", "subprocess.getoutput",
}  # fmt: skip
ALLOWED = {
    ("testing.py", "pickle"): "check_sim pickles a task that it has just been given, in memory",
    ("benchmarks/metaworld/sim.py", "pickle"): "dumps for Meta-World's set_task, of our numbers",
    ("parsing.py", "yaml.load"): "with a subclass of SafeLoader that also bounds the depth",
    ("__init__.py", "importlib.import_module"): "a name from a table of ours",
    ("cli.py", "importlib.import_module"): "a name from COMMANDS, never from outside",
    (
        "commands/shared/verbs.py",
        "importlib.import_module",
    ): "a name from VERBS, never from outside",
    ("commands/shared/all_flags.py", "importlib.import_module"): "a name from a table of ours",
    ("policies/blocks/pretrained_resnet.py", "pickle"): "the error that torch raises",
    ("policies/blocks/pretrained_resnet.py", "torch.load"): "weights_only: nothing but tensors",
    ("plugins.py", "importlib.import_module"): "a name from a table of ours",
    ("commands/benchmarks/install.py", "input"): "a yes or no from the user's terminal",
    (
        "benchmarks/isolated/builtin_world.py",
        "importlib.import_module",
    ): "the plug-in that the flags of our own process name",
    ("system/user_code.py", "importlib.import_module"): "plug-ins; if a flag names them",
    ("robots/buses/discovery.py", "importlib.import_module"): "pyserial's own module, by name",
    ("robots/buses/ports.py", "importlib.import_module"): "pyserial, termios, a table of ours",
    (
        "robots/third_party.py",
        "importlib.import_module",
    ): "installed packages named lerobot_robot_* and so on, as LeRobot imports them",
    (
        "policies/lerobot/config/families.py",
        "importlib.import_module",
    ): "a name from a table of ours",
    (
        "datasets/cache/column_cache.py",
        "numpy.load",
    ): "arrays only: allow_pickle is off unless asked for",
    (
        "training/checkpoints/state.py",
        "pickle",
    ): "the error that torch raises for anything but tensors",
    (
        "training/checkpoints/state.py",
        "torch.load",
    ): "weights_only: tensors and numbers, LeRobot's own format",
    (
        "datasets/writing/staged_episode.py",
        "numpy.load",
    ): "arrays only: allow_pickle is off unless asked for",
    (
        "engine/transport/message_encoding.py",
        "pickle",
    ): "between us and our workers, by unnamed sockets",
    (
        "datasets/reading/cache_filler.py",
        "pickle",
    ): "what our own process writes to its child's standard input",
    ("engine/worker/exec.py", "pickle"): "a worker's own state, in a file without a name",
    (
        "benchmarks/isolated/local_sim.py",
        "importlib.import_module",
    ): "a world's module, named by our own code",
    ("benchmarks/gym/probe.py", "pickle"): "question and answer of our own child, in a new folder",
    ("benchmarks/gym/env_inspection.py", "pickle"): "the other side of that",
    (
        "protocols/pickle/machine.py",
        "pickle",
    ): "the numbers of its opcodes; nothing that is sent is called",
    ("protocols/pickle/writer.py", "pickle"): "the numbers of its opcodes, to write with",
    ("benchmarks/libero/tasks.py", "pickle"): "an unpickler that makes arrays and nothing else",
    ("benchmarks/libero/world.py", "importlib.import_module"): "LIBERO's own modules, by name",
    (
        "benchmarks/libero_plus/package.py",
        "importlib.import_module",
    ): "LIBERO-plus's own modules, by names of ours",
    ("benchmarks/libero_pro/tasks.py", "numpy.load"): "arrays only: allow_pickle=False",
    ("benchmarks/pusht/benchmark.py", "importlib.import_module"): "OpenCV, to see whether it loads",
    ("benchmarks/mujoco/rendering.py", "importlib.import_module"): "a name from a table of ours",
    (
        "system/dependent_process.py",
        "runpy.run_module",
    ): "the module that our own command line names, as python -m does",
}
"""(file, what) -> why it runs nothing that was read."""


def found_in(text: str) -> Iterator[str]:
    """Yield every dangerous module that is imported and every dangerous call."""
    names: dict[str, str] = {}
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from {name.split(".")[0] for name in names.values()} & DANGEROUS_MODULES
    for node in nodes:
        if isinstance(node, ast.Call):
            called = _resolved(ast.unparse(node.func), names)
            if called in DANGEROUS_CALLS:
                yield called
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell="


def _resolved(called: str, names: dict[str, str]) -> str:
    """Return a call's dotted name as the module that it comes from spells it."""
    first, dot, rest = called.partition(".")
    return names.get(first, first) + dot + rest


def test_nothing_in_the_source_can_run_what_it_reads() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), what)
        for file in SOURCE.rglob("*.py")
        for what in found_in(file.read_text())
    }
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "no longer needed"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import pickle", "pickle"),
        ("from marshal import loads", "marshal"),
        ("import torch as t\nt.load('x')", "torch.load"),
        ("from torch import load as l\nl('x')", "torch.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "numpy.load"),
        ("import yaml\nyaml.load(text, yaml.Loader)", "yaml.load"),
        ("eval('1')", "eval"),
        ("__import__('os')", "__import__"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "shell="),
    ],
)
def test_the_check_finds_what_it_looks_for(text: str, what: str) -> None:
    assert what in set(found_in(text))


def test_the_check_leaves_methods_of_the_same_name_alone() -> None:
    assert set(found_in("network.eval()\nre.compile('x')\nmodule.compile()")) == set()
