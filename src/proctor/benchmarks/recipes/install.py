"""Installation of a benchmark into a virtual environment of its own.

Everything happens in a temporary folder beside the final one, which is renamed at the end. So an
interrupted installation leaves nothing that could be used, and the next one starts clean. Complete
downloads are kept until the installation succeeds.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

import msgspec

from proctor.benchmarks.recipes.installation import (
    RECORD,
    VENV,
    Installation,
    InstallRecord,
    benchmarks_folder,
    find_installation,
    interpreter_in,
    launcher_in,
    lock_benchmarks,
    process_that_uses,
    write_launcher,
)
from proctor.benchmarks.recipes.python_search import find_python
from proctor.benchmarks.recipes.recipe import Asset, BenchmarkRecipe, Source, Step
from proctor.errors import UsageError, strip_control_codes
from proctor.system.files import UNFINISHED, atomic_write, sha256_of, swap
from proctor.system.hub.downloads import RemoteFile, download_file

DOWNLOADS = ".downloads"
_SIZE = re.compile(r"\(([\d.]+)\s*([kKMG])i?B\)")
_IN_MB = {"k": 1e-3, "K": 1e-3, "M": 1.0, "G": 1e3}
_ASKED = re.compile(r"\b(Downloading|Downloaded|Using cached|Installing|Building|Collecting)\b(.*)")
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_VERSION")
"""Variables that would lead another interpreter to our packages."""
_LIST_VERSIONS = """
import json, platform
from importlib import metadata
found = {str(d.metadata["Name"]): d.version for d in metadata.distributions() if d.metadata["Name"]}
print(json.dumps({"python": platform.python_version(), "versions": found}))
"""
_MARGIN = 1.2
_MAX_MEMBERS = 200_000
_UNREADABLE = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error
)  # fmt: skip
_COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_SHOWN = 300


class InstallProgress(Protocol):
    """Shows how far an installation is."""

    def stage(self, text: str, megabytes: float | None = None) -> None:
        """Begin a stage; ``megabytes`` is what it downloads, if that is known."""

    def update(self, text: str, megabytes: float = 0.0) -> None:
        """Show the current item, after ``megabytes`` more have been downloaded."""


class InterpreterInfo(msgspec.Struct, frozen=True):
    """Version of an interpreter and of its distributions."""

    python: str
    versions: dict[str, str]


def install(recipe: BenchmarkRecipe, progress: InstallProgress) -> Installation:
    """Install the benchmark of ``recipe``, in place of an outdated installation."""
    check_requirements(recipe)
    python = find_python(recipe.pythons, recipe.name)
    root = benchmarks_folder()
    with _locked(), _scratch(root, recipe.name) as scratch:
        _fill(recipe, python, scratch, progress)
        _publish(recipe, scratch)
        for kept in _downloads(recipe):
            kept.unlink(missing_ok=True)
    installation = find_installation(recipe.name)
    assert installation is not None
    return installation


def check_requirements(recipe: BenchmarkRecipe) -> None:
    """Refuse to start without the programs and the disk space that the installation needs."""
    for program in (*recipe.programs, *(("git",) if recipe.sources else ())):
        if shutil.which(program) is None:
            raise UsageError(
                f"{recipe.name} needs the program {program!r}, which is not on PATH",
                code="benchmark.missing-program",
            )
    root = benchmarks_folder()
    root.mkdir(parents=True, exist_ok=True)
    free_mb = shutil.disk_usage(root).free / 1e6
    if free_mb < recipe.disk_mb:
        raise UsageError(
            f"{recipe.name} needs {recipe.disk_mb} MB, and {root} has {free_mb:.0f} MB free; set "
            "XDG_CACHE_HOME to a larger disk",
            code="disk.full",
        )


def _fill(recipe: BenchmarkRecipe, python: Path, folder: Path, progress: InstallProgress) -> None:
    """Install everything into ``folder``, and write the record last."""
    log = benchmarks_folder() / f"{recipe.name}.log"
    log.unlink(missing_ok=True)
    tools = _Tools(python, folder)
    progress.stage(f"virtual environment (Python {recipe.pythons[0]}, {tools.name})")
    _run(tools.make_venv(), log, progress)
    for packages, flags in ((recipe.requirements, ()), (recipe.no_deps, ("--no-deps",))):
        if packages:
            progress.stage(f"{len(packages)} pinned packages", _package_mb(recipe))
            _run([*tools.install(), *flags, *packages], log, progress)
    write_launcher(recipe, folder)
    for source in recipe.sources:
        _check_out(source, folder, log, progress)
    _put_on_path(recipe.sources, folder, folder)
    hashes = {asset.url: _fetch(asset, folder, progress) for asset in recipe.assets}
    for step in recipe.steps:
        _run_step(step, folder, log, progress)
    _put_on_path(recipe.sources, folder, benchmarks_folder() / recipe.name)
    found = interpreter_info(interpreter_in(folder))
    record = InstallRecord(
        recipe=recipe.digest(),
        python=found.python,
        versions=found.versions,
        assets=hashes,
        installed_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    atomic_write(folder / RECORD, msgspec.json.format(msgspec.json.encode(record)))
    log.unlink(missing_ok=True)


def _package_mb(recipe: BenchmarkRecipe) -> float:
    """Return the share of the download that is not assets, at least 1."""
    return max(1.0, recipe.download_mb - sum(asset.megabytes for asset in recipe.assets))


class _Tools:
    """The commands of uv where it is installed, else of venv and pip."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._uv = shutil.which("uv")
        self._python, self._venv = python, folder / VENV
        self._inside = interpreter_in(folder)
        self.name = "uv" if self._uv else "pip"

    def make_venv(self) -> list[str]:
        if self._uv:
            return [self._uv, "venv", "--seed", "--python", str(self._python), str(self._venv)]
        return [str(self._python), "-m", "venv", str(self._venv)]

    def install(self) -> list[str]:
        if self._uv:
            return [self._uv, "pip", "install", "--python", str(self._inside)]
        return [str(self._inside), "-m", "pip", "install", "--no-input", "--progress-bar=off"]


def interpreter_info(python: Path) -> InterpreterInfo:
    """Return the version of an interpreter and of its distributions."""
    try:
        done = subprocess.run(  # noqa: S603  the interpreter of an installation
            [str(python), "-c", _LIST_VERSIONS],
            capture_output=True,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=InterpreterInfo)
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{python} does not start: {strip_control_codes(str(error), _SHOWN)}",
            code="benchmark.broken-interpreter",
        ) from None


def child_environment() -> dict[str, str]:
    """Return our environment for another interpreter: without variables that redirect imports."""
    kept = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _check_out(source: Source, folder: Path, log: Path, progress: InstallProgress) -> None:
    """Fetch one commit of a repository; its hash verifies the content."""
    progress.stage(f"source {source.repository} at {source.commit[:8]}")
    place = folder / source.into
    place.mkdir(parents=True)
    git = ["git", "-C", str(place)]
    _run([*git, "init", "--quiet"], log, progress)
    _run([*git, "fetch", "--depth=1", source.repository, source.commit], log, progress)
    _run([*git, "checkout", "--quiet", "--detach", source.commit], log, progress)


def _put_on_path(sources: Sequence[Source], folder: Path, final: Path) -> None:
    """Put the sources on the path of the interpreter in ``folder``, as they are in ``final``."""
    if sources:
        site = next((folder / VENV).glob("lib*/python*/site-packages"))
        lines = [f"{final / source.into}\n" for source in sources]
        (site / "proctor_sources.pth").write_text("".join(lines), encoding="utf-8")


def _run_step(step: Step, folder: Path, log: Path, progress: InstallProgress) -> None:
    progress.stage(step.what)
    words = [str(launcher_in(folder)), *step.arguments]
    words = [word.replace("{folder}", str(folder)) for word in words]
    _run(words, log, progress, answers=step.answers)


def _run(
    words: Sequence[str],
    log: Path,
    progress: InstallProgress,
    *,
    answers: str = "",
) -> None:
    """Run a command to its end, show its progress and append its output to ``log``."""
    lines: list[str] = []
    with log.open("a", encoding="utf-8", errors="replace") as sink, _process(words) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(answers)
            child.stdin.close()
        sink.write(f"$ {' '.join(words)}\n")
        for line in child.stdout:
            sink.write(line)
            sink.flush()
            lines = [*lines[-40:], line]
            _show(line, progress)
        code = child.wait()
    if code:
        raise UsageError(
            f"{_reason(lines) or f'exit code {code}'} (output: {log})",
            code="benchmark.install-failed",
        )


@contextlib.contextmanager
def _process(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process group of its own, and end the group with the block."""
    child = subprocess.Popen(  # noqa: S603  pip, uv, or a step of our own recipe
        list(words),
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _show(line: str, progress: InstallProgress) -> None:
    asked = _ASKED.search(line)
    if asked is None:
        return
    size = _SIZE.search(line)
    megabytes = float(size[1]) * _IN_MB[size[2]] if size else 0.0
    item = PurePosixPath(asked[2].split("(")[0].strip()).name
    progress.update(strip_control_codes(f"{asked[1].lower()} {item}", 60), megabytes)


def _reason(lines: Sequence[str]) -> str:
    """Return the last line that looks like an error, or the last one."""
    told = [line.strip() for line in lines if line.strip()]
    errors = [line for line in told if re.search(r"\berror\b|No matching|cannot", line, re.I)]
    return strip_control_codes((errors or told or [""])[-1], _SHOWN)


def _fetch(asset: Asset, folder: Path, progress: InstallProgress) -> str:
    """Download an asset, unless an earlier attempt did; unpack it; return its SHA-256."""
    progress.stage(f"asset {asset.filename}", asset.megabytes)
    kept = _kept(asset)
    if not kept.is_file() or not sha256_of(kept).startswith(asset.sha256):
        most = int(asset.megabytes * 1e6 * _MARGIN) + 10**6
        remote = RemoteFile(asset.url, asset.sha256, most)
        download_file(remote, kept, "run the command again where there is a network")
    progress.update(f"unpacking {asset.filename}")
    found = sha256_of(kept)
    place = folder / asset.into
    place.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(kept):
            _unzip(kept, place, asset.unpacked_bytes)
        elif tarfile.is_tarfile(kept):
            _untar(kept, place, asset.unpacked_bytes)
        else:
            shutil.copyfile(kept, place / asset.filename)
    except _UNREADABLE as error:
        raise UsageError(
            f"{asset.filename} cannot be unpacked: {strip_control_codes(str(error), _SHOWN)}",
            code="benchmark.install-failed",
        ) from None
    return found


def _unzip(path: Path, place: Path, max_bytes: int) -> None:
    """Extract a zip; zipfile itself drops absolute paths and ``..``, and keeps to stated sizes."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        _check_content(max_bytes, len(entries), sum(entry.file_size for entry in entries))
        archive.extractall(place)  # noqa: S202  as above


def _untar(path: Path, place: Path, max_bytes: int) -> None:
    """Extract a tar archive, compressed or not."""
    with path.open("rb") as file:
        opener = next(
            (f for magic, f in _COMPRESSED.items() if file.peek().startswith(magic)), None
        )
    with path.open("rb") if opener is None else opener(path) as unpacked:
        bounded = _BoundedReader(unpacked, max_bytes * 2)
        with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as archive:
            archive.extractall(place, members=_bounded_members(archive, max_bytes), filter="data")


class _BoundedReader:
    """Reads a stream up to a size: a header of an archive may claim to be long, too."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        self._stream, self._left = stream, max_bytes

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            ReadError: there are more than the limit.
        """
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError("it would unpack to more than its limit")
        return self._stream.read(size)


def _bounded_members(archive: tarfile.TarFile, max_bytes: int) -> Iterator[tarfile.TarInfo]:
    size = 0
    for count, member in enumerate(archive, start=1):
        size += member.size  # of a sparse file, with its holes
        _check_content(max_bytes, count, size)
        yield member


def _check_content(max_bytes: int, count: int, size: int) -> None:
    if size > max_bytes or count > _MAX_MEMBERS:
        raise tarfile.ReadError(
            f"it would unpack to more than {max_bytes // 10**6} MB or {_MAX_MEMBERS} files"
        )


def _downloads(recipe: BenchmarkRecipe) -> list[Path]:
    return [_kept(asset) for asset in recipe.assets]


def _kept(asset: Asset) -> Path:
    name = asset.sha256[:16] or re.sub(r"\W+", "-", asset.url)[-80:]
    return benchmarks_folder() / DOWNLOADS / f"{name}-{asset.filename}"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    lock = lock_benchmarks()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _scratch(root: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder and remove it at the end; remove those of killed installations."""
    for left in root.glob(f".{name}.*{UNFINISHED}"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=UNFINISHED, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(recipe: BenchmarkRecipe, scratch: Path) -> None:
    """Give a complete installation its final name; an older one takes the temporary name."""
    final = benchmarks_folder() / recipe.name
    user = process_that_uses(final) if final.exists() else None
    if user is not None:
        raise UsageError(
            f"{recipe.name} is in use by process {user}; stop it first", code="benchmark.in-use"
        )
    _rewrite_paths(scratch, final)
    if final.exists():
        swap(final, scratch)  # the caller removes the old one, under the temporary name
    else:
        scratch.rename(final)


def _rewrite_paths(scratch: Path, final: Path) -> None:
    """Replace the temporary folder by the final one in scripts of the virtual environment."""
    old, new = os.fsencode(scratch), os.fsencode(final)
    venv = scratch / VENV
    scripts = [venv / "pyvenv.cfg", *interpreter_in(scratch).parent.iterdir()]
    for script in scripts:
        if script.is_symlink() or not script.is_file() or script.stat().st_size > 10**6:
            continue
        content = script.read_bytes()
        if old in content:
            mode = script.stat().st_mode
            script.write_bytes(content.replace(old, new))
            script.chmod(mode)
