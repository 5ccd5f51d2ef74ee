"""``proctor benchmarks``: install, list, doctor and remove, with a small benchmark of our own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from proctor.benchmarks.recipes import catalog
from proctor.benchmarks.recipes.installation import (
    benchmarks_folder,
    find_installation,
    find_interpreter,
    lock_benchmarks,
    process_that_uses,
    require_interpreter,
)
from proctor.cli import main
from proctor.errors import UsageError
from proctor.system.files import sha256_of
from tests.refusals import refuses

HERE = "{}.{}".format(*sys.version_info)
RECIPE = """
summary = "a small world"
licence = "MIT"
pythons = ["{python}"]
requirements = ["{wheel}"]
modules = ["small_world"]
download_mb = 1
disk_mb = 2
minutes = 1

[environment]
SMALL_ROOT = "{{folder}}/assets/small"

[[steps]]
arguments = ["-c", "{step}"]
what = "a step"
answers = "y\\n"
"""
STEP = "import os, small_world; assert input() == 'y'; os.makedirs(os.environ['SMALL_ROOT'])"


def make_wheel(folder: Path) -> Path:
    """Write a wheel of one module; pip installs it without a network."""
    path = folder / "small_world-1.0-py3-none-any.whl"
    info = "small_world-1.0.dist-info"
    files = {
        "small_world.py": "VALUE = 7\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: small-world\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nsmall = small_world:main\n",
    }
    listed = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": listed}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and a catalog with one recipe: ``small``."""
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    write_recipe(recipes, make_wheel(tmp_path))
    monkeypatch.setattr(catalog, "RECIPES", recipes)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no uv
    return benchmarks_folder()


def write_recipe(recipes: Path, wheel: Path, step: str = STEP, python: str = HERE) -> None:
    text = RECIPE.format(python=python, wheel=wheel, step=step)
    (recipes / "small.toml").write_text(text)


def left(folder: Path) -> list[str]:
    """What an installation left, except locks and logs."""
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in found if name not in (".lock", ".claim", "small.log")]


@pytest.mark.parametrize("tool", ["uv", pytest.param("pip", marks=pytest.mark.slow)])
def test_a_benchmark_is_installed_found_checked_and_removed(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tool: str,
) -> None:
    if tool == "uv":
        fake_uv(tmp_path, monkeypatch)
    with refuses(UsageError, "benchmark.not-installed"):
        require_interpreter("small")
    assert main(["benchmarks", "doctor", "small"]) == 1
    assert main(["benchmarks", "install", "small", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "1 MB to download" in out
    assert left(cache) == ["small"]
    assert (cache / "small" / "assets" / "small").is_dir()

    python = require_interpreter("small")
    assert python == find_interpreter("small") == cache / "small" / "python"
    program = "import os, small_world; print(small_world.VALUE, os.environ['SMALL_ROOT'])"
    said = subprocess.check_output([python, "-c", program], text=True)
    assert said == f"7 {cache}/small/assets/small\n"
    activate = (cache / "small" / "venv" / "bin" / "activate").read_text()
    assert str(cache / "small" / "venv") in activate  # and not the temporary folder
    if tool == "pip":
        script = (cache / "small" / "venv" / "bin" / "small").read_text()
        interpreter = f"{cache}/small/venv/bin/python"
        through_sh = f"#!/bin/sh\n'''exec' {interpreter}"  # pip's form for a long path
        assert script.startswith((f"#!{interpreter}", through_sh))
    record = json.loads((cache / "small" / "install.json").read_text())
    assert record["versions"]["small-world"] == "1.0"

    assert main(["benchmarks", "list"]) == 0
    assert "not run here" in capsys.readouterr().out
    assert main(["benchmarks", "doctor", "small"]) == 0
    capsys.readouterr()
    (
        cache / "small" / "venv" / "lib" / f"python{HERE}" / "site-packages" / "small_world.py"
    ).unlink()
    assert main(["benchmarks", "doctor", "small"]) == 1
    assert "No module named 'small_world'" in capsys.readouterr().out

    other = cache / "other"
    other.mkdir()
    (cache.parent / "libero").mkdir()
    assert main(["benchmarks", "remove", "small"]) == 0
    assert left(cache) == ["other"]
    assert (cache.parent / "libero").is_dir()
    assert main(["benchmarks", "remove", "small"]) == 0
    assert find_interpreter("small") is None


def test_nothing_starts_without_a_confirmation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["benchmarks", "install", "small"]) == 2  # no terminal
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert main(["benchmarks", "install", "small"]) == 1
    assert left(cache) == []


def test_a_failed_step_leaves_nothing_and_keeps_its_output(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_uv(tmp_path, monkeypatch)
    write_recipe(catalog.RECIPES, tmp_path / "missing-1.0-py3-none-any.whl")
    assert main(["benchmarks", "install", "small", "--yes"]) == 2
    assert "missing-1.0" in capsys.readouterr().err
    assert left(cache) == []
    assert "missing-1.0" in (cache / "small.log").read_text()


def start_install(cache: Path) -> subprocess.Popen[str]:
    """Start an installation in another process."""
    program = (
        "import sys; from pathlib import Path; from proctor.benchmarks.recipes import catalog\n"
        f"catalog.RECIPES = Path({str(catalog.RECIPES)!r})\n"
        "from proctor.cli import main; sys.exit(main(['benchmarks', 'install', 'small', '--yes']))"
    )
    return subprocess.Popen([sys.executable, "-c", program], text=True, stderr=subprocess.PIPE)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_leaves_nothing_half(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals
) -> None:
    """The step is interrupted: the virtual environment is complete by then."""
    started = tmp_path / "started"
    step = f"import pathlib, time; pathlib.Path('{started}').touch(); time.sleep(60)"
    wheel = tmp_path / "small_world-1.0-py3-none-any.whl"
    fake_uv(tmp_path, monkeypatch)
    write_recipe(catalog.RECIPES, wheel, step)
    process = start_install(cache)
    wait_for(started)
    with refuses(UsageError, "benchmark.busy"):
        lock_benchmarks()
    process.send_signal(stop)
    process.communicate(timeout=60)
    assert process.returncode == (130 if stop is not signal.SIGKILL else -signal.SIGKILL)
    assert find_installation("small") is None
    if stop is not signal.SIGKILL:
        assert left(cache) == []
    write_recipe(catalog.RECIPES, wheel, "print('quick')")
    assert main(["benchmarks", "install", "small", "--yes"]) == 0
    assert left(cache) == ["small"]


def write_fake_uv(base: Path) -> Path:
    """Write a ``uv`` that makes virtual environments without pip and unpacks wheels.

    It is quicker than ensurepip, and shows that uv's commands are used where there is a uv.
    """
    uv = base / "bin" / "uv"
    uv.parent.mkdir(exist_ok=True)
    uv.write_text(
        f"#!{sys.executable}\n"
        "import subprocess, sys, zipfile\n"
        "if sys.argv[1] == 'venv':\n"
        "    words = [sys.argv[4], '-m', 'venv', '--without-pip', sys.argv[5]]\n"
        "    sys.exit(subprocess.call(words))\n"
        "assert sys.argv[1:4] == ['pip', 'install', '--python']\n"
        "words = [sys.argv[4], '-c', 'import site; print(site.getsitepackages()[0])']\n"
        "folder = subprocess.check_output(words, text=True).strip()\n"
        "zipfile.ZipFile(sys.argv[5]).extractall(folder)\n"
        "print(f'Downloaded {sys.argv[5]} (1.5MiB)')\n"
    )
    uv.chmod(0o755)
    return uv.parent


def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put such a ``uv`` on PATH."""
    monkeypatch.setenv("PATH", f"{write_fake_uv(tmp_path)}:/usr/bin:/bin")


def test_assets_are_fetched_checked_and_resumed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A complete download of an interrupted installation is not fetched again."""
    fake_uv(tmp_path, monkeypatch)
    archive = tmp_path / "pack.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        pack.writestr("inside/mesh.obj", "v 0 0 0\n")
    wheel = tmp_path / "small_world-1.0-py3-none-any.whl"
    write_recipe(catalog.RECIPES, wheel, "raise SystemExit('stopped')")
    with (catalog.RECIPES / "small.toml").open("a") as recipe:
        recipe.write(
            f"\n[[assets]]\nurl = 'https://example.org/pack.zip'\ninto = 'assets/pack'\n"
            f"megabytes = 1\nsha256 = '{sha256_of(archive)}'\n"
        )
    fetched = []

    def copy(remote: object, path: Path, advice: str) -> None:
        fetched.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, path)

    monkeypatch.setattr("proctor.benchmarks.recipes.install.download_file", copy)
    assert main(["benchmarks", "install", "small", "--yes"]) == 2
    assert left(cache) == [".downloads"]
    text = (catalog.RECIPES / "small.toml").read_text()
    (catalog.RECIPES / "small.toml").write_text(text.replace("raise SystemExit('stopped')", "1"))
    assert main(["benchmarks", "install", "small", "--yes"]) == 0
    assert len(fetched) == 1
    assert not fetched[0].exists()
    assert (cache / "small" / "assets" / "pack" / "inside" / "mesh.obj").is_file()


def test_a_changed_recipe_replaces_the_installation(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_uv(tmp_path, monkeypatch)
    assert main(["benchmarks", "install", "small", "--yes"]) == 0
    capsys.readouterr()
    wheel = tmp_path / "small_world-1.0-py3-none-any.whl"
    write_recipe(catalog.RECIPES, wheel, "print('changed')")
    assert main(["benchmarks", "list"]) == 0
    assert "outdated" in capsys.readouterr().out
    python = find_interpreter("small")
    user = subprocess.Popen([str(python), "-c", "import time; time.sleep(60)"])
    try:
        while process_that_uses(cache / "small") is None:  # its command line is there soon
            time.sleep(0.01)
        assert main(["benchmarks", "remove", "small"]) == 2
        assert main(["benchmarks", "install", "small", "--yes"]) == 2
    finally:
        user.kill()
        user.wait()
    assert main(["benchmarks", "install", "small", "--yes"]) == 0
    assert main(["benchmarks", "install", "small", "--yes"]) == 0  # nothing to do
    assert not (cache / "small" / "assets").exists()
    assert left(cache) == ["small"]


def test_a_missing_program_is_one_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = catalog.RECIPES / "small.toml"
    recipe.write_text(recipe.read_text().replace("minutes = 1", "minutes = 1\nprograms=['nope']"))
    assert main(["benchmarks", "install", "small", "--yes"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_source_is_the_commit_that_the_recipe_names(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(tmp_path, monkeypatch)
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git = ["git", "-C", str(upstream), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.check_call([*git, "init", "--quiet"])
    (upstream / "simulator.py").write_text("VALUE = 8\n")
    subprocess.check_call([*git, "add", "."])
    subprocess.check_call([*git, "commit", "--quiet", "-m", "first"])
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    wheel = tmp_path / "small_world-1.0-py3-none-any.whl"
    write_recipe(catalog.RECIPES, wheel, "import simulator; assert simulator.VALUE == 8")
    with (catalog.RECIPES / "small.toml").open("a") as recipe:
        recipe.write(
            f"\n[[sources]]\nrepository = '{upstream}'\ncommit = '{commit}'\n"
            "into = 'sources/simulator'\n"
        )
    assert main(["benchmarks", "install", "small", "--yes"]) == 0
    program = "import simulator; print(simulator.__file__)"
    said = subprocess.check_output([str(find_interpreter("small")), "-c", program], text=True)
    assert said == f"{cache}/small/sources/simulator/simulator.py\n"
