"""LIBERO as the peers import it: with our assets, no prompt and no network. Runs in their venvs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Pictures:
    """How many were drawn."""

    drawn: int = 0


def prepare_libero(assets: Path, folder: Path) -> None:
    """Tell LIBERO where its files are; ``folder`` keeps its settings and has to stay."""
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


def count_pictures() -> Pictures:
    """Return a tally of what robosuite draws in this process from now on."""
    pictures = Pictures()
    simulation = importlib.import_module("robosuite.utils.binding_utils").MjSim
    render = simulation.render

    def counted_render(*args: Any, **options: Any) -> Any:
        pictures.drawn += 1
        return render(*args, **options)

    simulation.render = counted_render
    return pictures
