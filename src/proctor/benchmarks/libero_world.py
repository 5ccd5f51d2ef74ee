"""LIBERO's own environments, imported without its prompts, home files, log files or torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_CONTROL_HZ = 20


def import_libero() -> None:
    """Import LIBERO's environments and robosuite, quietly. The second call costs nothing.

    Left alone, robosuite logs into the system's temporary folder, complains about a settings file
    and overwrites MUJOCO_GL; LIBERO asks on standard input where to keep its files.
    """
    if "libero.libero.envs" in sys.modules:
        return
    with tempfile.TemporaryDirectory(prefix="proctor-libero-") as folder:
        Path(folder, "config.yaml").write_text("{}\n")
        with _variables(LIBERO_CONFIG_PATH=folder, MUJOCO_GL="disable"):
            _import_robosuite_macros()
            importlib.import_module("libero.libero.envs")


def make_world(bddl_file: Path, assets: Path) -> Any:
    """Build the robosuite environment that a BDDL file describes, with no renderer.

    The model is drawn from LIBERO's global generator; what it draws is drawn again by every reset.
    """
    import_libero()
    libero: Any = importlib.import_module("libero.libero")
    robosuite: Any = importlib.import_module("robosuite")
    envs: Any = importlib.import_module("libero.libero.envs")
    bddl: Any = importlib.import_module("libero.libero.envs.bddl_utils")
    libero._assets_path_cache = str(assets)
    problem = bddl.get_problem_info(str(bddl_file))
    return envs.TASK_MAPPING[problem["problem_name"]](
        bddl_file_name=str(bddl_file),
        robots=["Panda"],
        controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
        initialization_noise=None,
        use_camera_obs=False,
        has_renderer=False,
        has_offscreen_renderer=False,
        control_freq=_CONTROL_HZ,
        ignore_done=True,
        hard_reset=False,
    )


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, which LIBERO draws from, and leave it as it was."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _import_robosuite_macros() -> None:
    """Load robosuite's settings ahead of robosuite, to change those that act during its import."""
    package = importlib.util.find_spec("robosuite")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).with_name("macros.py")
    spec = importlib.util.spec_from_file_location("robosuite.macros", path)
    assert spec is not None
    assert spec.loader is not None
    macros: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL = None
    macros.MUJOCO_GPU_RENDERING = False  # it would overwrite MUJOCO_GL
    sys.modules["robosuite.macros"] = macros
    # An empty file of own settings is what robosuite complains about not having.
    name = "robosuite.macros_private"
    sys.modules.setdefault(name, types.ModuleType(name))


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
