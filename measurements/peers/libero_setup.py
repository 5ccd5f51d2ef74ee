"""LIBERO's set-up for the peers: our assets, no prompt, no network. Runs in their venvs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class ImageCount:
    """Number of rendered images."""

    rendered: int = 0


def prepare_libero(assets: Path, folder: Path) -> None:
    """Configure LIBERO's paths; ``folder`` holds its config and must stay."""
    found = importlib.util.find_spec("libero")
    assert found is not None
    assert found.submodule_search_locations is not None
    root = Path(next(iter(found.submodule_search_locations)), "libero")
    places = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": root.parent / "datasets",
        "assets": assets,
    }
    # JSON is YAML.
    Path(folder, "config.yaml").write_text(json.dumps({key: str(places[key]) for key in places}))
    os.environ["LIBERO_CONFIG_PATH"] = str(folder)
    libero: Any = importlib.import_module("libero.libero")
    libero._assets_path_cache = str(assets)


def count_images() -> ImageCount:
    """Return a counter of robosuite's renders in this process from now on."""
    images = ImageCount()
    simulation = importlib.import_module("robosuite.utils.binding_utils").MjSim
    render = simulation.render

    def counted_render(*args: Any, **options: Any) -> Any:
        images.rendered += 1
        return render(*args, **options)

    simulation.render = counted_render
    return images
