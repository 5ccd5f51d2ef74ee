from __future__ import annotations

from pathlib import Path

import pytest

from proctor.evaluation.smoke_test import SmokeTestStatus, smoke_test_one

pytest.importorskip("metaworld")
pytestmark = pytest.mark.sim


def test_the_doctor_catches_a_package_that_gymnasium_imports_undeclared(tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'packaging'\")"
    (tmp_path / "packaging.py").write_text(missing)
    trial = smoke_test_one("metaworld", {"PYTHONPATH": str(tmp_path), "MUJOCO_GL": "disable"})
    assert trial.found is SmokeTestStatus.BROKEN
    assert trial.text.startswith("ModuleNotFoundError: No module named 'packaging' (")
    assert trial.fix == "pip install --upgrade 'proctor[metaworld]'"


def test_libero_without_assets_is_told_and_not_downloaded(tmp_path: Path) -> None:
    pytest.importorskip("robosuite")
    trial = smoke_test_one("libero", {"XDG_CACHE_HOME": str(tmp_path), "PROCTOR_LIBERO_ASSETS": ""})
    assert trial.found is SmokeTestStatus.LACKING
    assert trial.fix == "python -m proctor.benchmarks.libero.download"
    assert not any(tmp_path.iterdir())
