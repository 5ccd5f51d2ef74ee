"""Packing for a host without a network: GPU code, parts, and the script that the host sources."""

from __future__ import annotations

import lzma
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
FAST = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
CODES = [("ptx", 75), ("cubin", 80), ("cubin", 86), ("cubin", 90), ("cubin", 120)]
needs_xz = pytest.mark.skipif(not shutil.which("xz"), reason="the host unpacks with xz")


@pytest.fixture
def fatbin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import warp_fatbin

    return warp_fatbin


@pytest.fixture
def offline_host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import offline_host

    return offline_host


def container(codes: list[tuple[str, int]]) -> bytes:
    """Return a container whose payloads name their kind and device."""
    entries = b""
    for kind, sm in codes:
        payload = f"{kind}{sm}".ljust(16, ".").encode()
        header = struct.pack("<HHIQ", {"ptx": 1, "cubin": 2}[kind], 0x101, 64, len(payload))
        header += bytes(12) + struct.pack("<I", sm)
        entries += header.ljust(64, b"\1") + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@pytest.mark.parametrize(("arch", "left"), [
    (90, "cubin90"), (89, "cubin86"), (80, "cubin80"), (121, "cubin120"), (100, "ptx75"),
])  # fmt: skip
def test_only_the_code_for_the_host_is_left(fatbin: ModuleType, arch: int, left: str) -> None:
    section = bytearray(container(CODES) + container(CODES))
    before = bytes(section)
    assert fatbin.prune_fatbin(section, arch) == 2 * 16
    assert len(section) == len(before)
    for kind, sm in CODES:
        name = f"{kind}{sm}.".encode()
        assert section.count(name) == (2 if f"{kind}{sm}" == left else 0)
    assert section.count(b"\1" * 30) == before.count(b"\1" * 30), "headers stay"


@pytest.mark.parametrize("section", [
    container(CODES)[:-8],
    container(CODES) + bytes(64),
    container(CODES) + b"short",
    container(CODES)[:16] + b"\7" + container(CODES)[17:],
    container(CODES)[:24] + b"\x18" + container(CODES)[25:],
])  # fmt: skip
def test_another_format_is_refused(fatbin: ModuleType, section: bytes) -> None:
    with pytest.raises(fatbin.FatbinError):
        fatbin.prune_fatbin(bytearray(section), 90)


def test_a_device_without_code_is_refused(fatbin: ModuleType) -> None:
    with pytest.raises(fatbin.FatbinError):
        fatbin.prune_fatbin(bytearray(container([("cubin", 90)])), 100)


def test_the_section_of_a_library_is_pruned(fatbin: ModuleType, tmp_path: Path) -> None:
    names, code = b"\0.names\0.nv_fatbin\0", container(CODES)
    table = 64 + len(names) + len(code)
    head = b"\x7fELF".ljust(40, b"\0") + struct.pack("<Q", table)
    head += bytes(10) + struct.pack("<HHH", 64, 3, 1)
    sections = [(0, 0, 0), (1, 64, len(names)), (8, 64 + len(names), len(code))]
    headers = [struct.pack("<IIQQQQ", text, 1, 0, 0, at, n) for text, at, n in sections]
    library = tmp_path / "some.so"
    library.write_bytes(head + names + code + b"".join(head.ljust(64, b"\0") for head in headers))
    before = library.read_bytes()
    fatbin.prune_library(library, 90)
    after = library.read_bytes()
    assert len(after) == len(before)
    assert b"cubin90" in after
    assert b"cubin80" not in after
    with pytest.raises(fatbin.FatbinError):
        fatbin.find_section(before, b".other")


def test_parts_are_below_the_limit_and_replace_those_of_before(
    offline_host: ModuleType, tmp_path: Path
) -> None:
    archive, output = tmp_path / "archive", tmp_path / "vendor"
    archive.write_bytes(random.Random(0).randbytes(100_001))
    many = offline_host.write_parts(archive, output, 0.02, OURS)
    assert len(many) == 9
    few = offline_host.write_parts(archive, output, 0.06, OURS)
    assert [folder.name for folder in few] == ["one", "two"]
    assert sorted(output.iterdir()) == few
    assert b"".join((folder / "part").read_bytes() for folder in few) == archive.read_bytes()
    for folder in few:
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 60_000
        assert "@" not in (folder / "setup.sh").read_text().replace('"$@"', "")
    with pytest.raises(offline_host.PackError):
        offline_host.write_parts(archive, output, 0.009, OURS)


def test_every_pinned_package_gets_its_version(offline_host: ModuleType) -> None:
    found = offline_host.pinned([*offline_host.PACKAGES, *offline_host.GL_PACKAGES])
    assert [name for name in found if "==" not in name] == []
    assert any(name.startswith("mujoco-core==") for name in offline_host.renderer_requirements())


def test_wrong_arguments_end_with_one_line(
    offline_host: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--python=three", "--part_mb=0"):
        assert offline_host.main([f"--output={tmp_path}", flag]) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: ")
        assert told.count("\n") == 1


class Host:
    """A host that gets one part after the other, in the same folder."""

    def __init__(self, offline_host: ModuleType, folder: Path, python: str = OURS) -> None:
        self.folder, self.root = folder / "clone", folder / "unpacked"
        tree = folder / "tree"
        (tree / "host").mkdir(parents=True)
        (tree / "host" / "offline_package.py").write_text("NAME = 'packed'\n")
        (tree / "host" / "noise").write_bytes(random.Random(0).randbytes(3000))
        offline_host.add_commands(tree)
        offline_host.write_archive(tree, folder / "archive", FAST)
        self.parts = offline_host.write_parts(folder / "archive", folder / "made", 0.0105, python)
        (self.folder / "src" / "proctor").mkdir(parents=True)

    def source(self, *names: str, then: str = "true") -> subprocess.CompletedProcess[str]:
        """Source parts in one call; only they are there."""
        vendor = self.folder / "vendor"
        shutil.rmtree(vendor, ignore_errors=True)
        for part in self.parts:
            if part.name in names:
                shutil.copytree(part, vendor / part.name)
        lines = [f". vendor/{name}/setup.sh || exit" for name in names]
        variables = {"OFFLINE_HOST": str(self.root)}
        variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        words = ["bash", "-c", "\n".join(["set -eu", *lines, then])]
        return subprocess.run(
            words, env=variables, cwd=self.folder, capture_output=True, text=True, check=False
        )


@needs_xz
def test_a_host_unpacks_with_the_last_part_and_later_sets_variables(
    offline_host: ModuleType, tmp_path: Path
) -> None:
    host = Host(offline_host, tmp_path)
    assert len(host.parts) == 2
    first = host.source("one")
    assert (first.returncode, first.stdout) == (
        0,
        f"offline host: 1 of 2 parts are in {host.root}\n",
    )
    shown = 'python3 -c "import offline_package as o; print(o.NAME)"; echo "$PYTHONPATH"'
    second = host.source("two", then=shown)
    assert second.returncode == 0, second.stderr
    name, paths = second.stdout.splitlines()[-2:]
    (tree,) = (path for path in host.root.iterdir() if not path.is_symlink())
    assert (name, paths) == ("packed", f"{host.folder}/src:{tree}/host")
    again = host.source("one", "two", then=shown)
    assert again.stdout.splitlines() == [name, paths]
    renderer = f"{host.root}/renderer_python -c \"import os; print(os.environ['WARP_CACHE_PATH'])\""
    assert host.source("one", then=renderer).stdout == f"{tree}/kernels\n"


@needs_xz
def test_a_damaged_part_is_copied_again(offline_host: ModuleType, tmp_path: Path) -> None:
    host = Host(offline_host, tmp_path)
    path = host.parts[1] / "part"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    damaged = host.source("one", "two")
    assert damaged.returncode == 2
    assert damaged.stderr.splitlines()[-1].startswith("offline host: the parts are damaged")
    path.write_bytes(whole)
    assert host.source("two", "one").returncode == 0


@needs_xz
def test_another_python_is_refused(offline_host: ModuleType, tmp_path: Path) -> None:
    refused = Host(offline_host, tmp_path, "3.7").source("one", "two")
    assert refused.returncode == 2
    assert refused.stderr.startswith("offline host: python3 is")
