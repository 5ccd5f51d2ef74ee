"""LIBERO's environments, imported without prompts, files in the home directory, logs or torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from proctor.benchmarks.libero.camera_pose import CameraPose, MoveCamera
from proctor.benchmarks.mujoco.log import log_mujoco_warnings
from proctor.system.platform.environment import temporary_environment

_CONTROL_HZ = 20


def import_libero() -> None:
    """Import LIBERO's environments and robosuite without side effects; later calls are free.

    By default robosuite logs into the temporary folder, warns about a settings file and overwrites
    MUJOCO_GL, and LIBERO asks on standard input for a folder.
    """
    if "libero.libero.envs" in sys.modules:
        return
    with tempfile.TemporaryDirectory(prefix="proctor-libero-") as folder:
        Path(folder, "config.yaml").write_text("{}\n")
        with temporary_environment({"LIBERO_CONFIG_PATH": folder, "MUJOCO_GL": "disable"}):
            _import_robosuite_macros()
            importlib.import_module("libero.libero.envs")


def make_world(
    bddl_file: Path,
    assets: Path,
    *,
    textures: bool,
    objects: Mapping[str, str] | None = None,
    cameras: Mapping[str, MoveCamera] | None = None,
) -> Any:
    """Make the robosuite environment of a BDDL file, without a renderer.

    Every reset draws object poses from numpy's global generator. ``textures`` take two thirds of a
    model's memory and half of its loading time; physics ignores them. ``objects`` are categories
    that LIBERO lacks, and its category that each is placed like. ``cameras`` moves cameras before
    the model is compiled, by name.
    """
    import_libero()
    _register_objects(objects or {})
    libero: Any = importlib.import_module("libero.libero")
    envs: Any = importlib.import_module("libero.libero.envs")
    bddl: Any = importlib.import_module("libero.libero.envs.bddl_utils")
    libero._assets_path_cache = str(assets)
    problem = bddl.get_problem_info(str(bddl_file))
    original = envs.TASK_MAPPING[problem["problem_name"]]
    return make_env(_with_cameras(original, cameras or {}), bddl_file, textures=textures)


def make_env(env_class: Any, bddl_file: Path, *, textures: bool, **arguments: Any) -> Any:
    """Make an environment of LIBERO's class ``env_class``, without a renderer."""
    log_mujoco_warnings()
    robosuite: Any = importlib.import_module("robosuite")
    return _as_compiled(env_class, textures=textures)(
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
        **arguments,
    )


def _register_objects(objects: Mapping[str, str]) -> None:
    """Give LIBERO a class for each category that it lacks; the category's asset has its name."""
    base: Any = importlib.import_module("libero.libero.envs.base_object")
    for category, like in objects.items():
        if category in base.OBJECTS_DICT:
            continue
        original = base.OBJECTS_DICT[like]
        # LIBERO derives the category from the class's name.
        name = "".join(word.capitalize() for word in category.split("_"))
        made = type(name, (original,), {"__init__": _init_with_asset(original, category)})
        base.OBJECTS_DICT[category] = made
        if like in base.VISUAL_CHANGE_OBJECTS_DICT:
            base.VISUAL_CHANGE_OBJECTS_DICT[category] = made


def _init_with_asset(original: Any, asset: str) -> Callable[..., None]:
    def init(self: Any, name: str = asset, obj_name: str = asset, **others: Any) -> None:
        original.__init__(self, name, obj_name, **others)

    return init


def _with_cameras(original: Any, cameras: Mapping[str, MoveCamera]) -> Any:
    """Return a subclass whose arena has other camera poses."""
    if not cameras:
        return original

    def setup_camera(env: Any, arena: Any) -> None:
        original._setup_camera(env, arena)
        for name, move in cameras.items():
            camera = arena.worldbody.find(f".//camera[@name='{name}']")
            position, quaternion = (
                tuple(float(number) for number in camera.get(key).split())
                for key in ("pos", "quat")
            )
            moved = move(CameraPose(position, quaternion))
            arena.set_camera(camera_name=name, pos=moved.position, quat=moved.quaternion)

    return type(original.__name__, (original,), {"_setup_camera": setup_camera})


def _as_compiled(original: Any, *, textures: bool) -> Any:
    """Return a subclass that stores the initial values of model fields that resets change."""

    def initialize_sim(env: Any, xml_string: str | None = None) -> None:
        if not textures:
            env.set_xml_processor(_without_textures)
        original._initialize_sim(env, xml_string)
        model = env.sim.model._model
        # Poses that a reset changes (cabinets, stoves), and colours (a stove's plate).
        fields = (model.body_pos, model.body_quat, model.site_rgba)
        env.compiled_fields = [(values, values.copy()) for values in fields]

    # Keep the name: LIBERO compares it with the BDDL file's.
    return type(original.__name__, (original,), {"_initialize_sim": initialize_sim})


def _without_textures(xml: str) -> str:
    root = ElementTree.fromstring(xml)  # noqa: S314 (robosuite wrote it a moment ago)
    for asset in root.iter("asset"):
        for texture in asset.findall("texture"):
            asset.remove(texture)
        for material in asset.findall("material"):
            material.attrib.pop("texture", None)
    return ElementTree.tostring(root, encoding="unicode")


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, which LIBERO uses, and restore it afterwards."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _import_robosuite_macros() -> None:
    """Load robosuite's settings before robosuite, to change those that its import uses."""
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
    # An empty module of private settings stops robosuite's warning that there is none.
    name = "robosuite.macros_private"
    sys.modules.setdefault(name, types.ModuleType(name))
