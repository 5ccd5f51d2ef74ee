"""`proctor doctor`: findings about a machine, and the choice of a GL backend."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from proctor import cli
from proctor.errors import NoGraphics
from proctor.evaluation import smoke_test
from proctor.evaluation.smoke_test import SmokeTestResult, SmokeTestStatus
from proctor.system.graphics import gl, gl_probe
from proctor.system.graphics.gl_probe import GlProbe
from proctor.system.platform import doctor
from proctor.system.platform.doctor import DoctorLevel, GpuInfo
from proctor.system.platform.platform_info import cgroup_memory_bytes
from tests.refusals import refuses

EGL = GlProbe("egl", frame_ms=12.34, device="NVIDIA H200/PCIe/SSE2")
OSMESA = GlProbe("osmesa", frame_ms=40.0, device="llvmpipe (LLVM 15.0.6, 256 bits)")
NO_EGL = GlProbe("egl", error="its library is not installed")
NO_OSMESA = GlProbe("osmesa", error="its library is not installed")
NO_GLFW = GlProbe("glfw", error="X11: The DISPLAY environment variable is missing")
GIB = 2**30

Examine = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def linux_without_mujoco_gl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Return a doctor for a machine that is sound but for what the test says."""

    def examine(
        *probes: GlProbe,
        gpus: GpuInfo = GpuInfo(),  # noqa: B008
        mujoco: str | None = doctor.TESTED["mujoco"],
        metaworld: str | None = doctor.TESTED["metaworld"],
        memory: int = 64 * GIB,
        trials: Sequence[SmokeTestResult] = (),
    ) -> tuple[int, str]:
        versions = {"mujoco": mujoco, "metaworld": metaworld}
        monkeypatch.setattr(doctor, "installed_version", versions.get)
        monkeypatch.setattr(doctor, "find_gpus", lambda: gpus)
        monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
        monkeypatch.setattr(doctor, "machine_memory_bytes", lambda: 64 * GIB)
        monkeypatch.setattr(doctor, "usable_memory_bytes", lambda: memory)
        monkeypatch.setattr(doctor, "probe_backends", lambda backends, always_time: probes)
        monkeypatch.setattr(smoke_test, "smoke_test_all", lambda environment, at_once: trials)
        code = cli.main(["doctor"])
        return code, capsys.readouterr().out

    return examine


def lines_of(report: str, level: DoctorLevel) -> list[str]:
    return [line for line in report.splitlines() if line.startswith(level.value)]


def test_a_healthy_machine_has_no_warnings_and_exit_code_0(examine: Examine) -> None:
    code, report = examine(EGL, NO_OSMESA, NO_GLFW)
    assert code == 0
    assert not lines_of(report, DoctorLevel.WARN) + lines_of(report, DoctorLevel.FAIL)
    assert "ok    egl        12.3 ms a frame of 480x480, NVIDIA H200/PCIe/SSE2" in report
    assert "ok    osmesa     not needed; does not render: its library is not installed" in report
    assert "ok    rendering  egl: eval uses it when MUJOCO_GL is not set" in report
    assert "ok    cores      8 usable of " in report
    assert "fix:" not in report


def test_a_benchmark_that_does_not_open_fails_and_one_that_is_not_installed_does_not(
    examine: Examine,
) -> None:
    missing = SmokeTestResult(
        "pusht", SmokeTestStatus.NOT_INSTALLED, "not installed; run: pip install 'proctor[pusht]'"
    )
    lacking = SmokeTestResult(
        "libero", SmokeTestStatus.LACKING, "installed, but without assets", "proctor eval ..."
    )
    opened = SmokeTestResult("aloha", SmokeTestStatus.OPENED, "opens, resets, steps, renders")
    code, report = examine(EGL, trials=[missing, lacking, opened])
    assert code == 0
    assert "ok    pusht      not installed; run: pip install 'proctor[pusht]'" in report
    assert "warn  libero     installed, but without assets\n" in report
    assert "fix: proctor eval ..." in report
    broken = SmokeTestResult(
        "metaworld", SmokeTestStatus.BROKEN, "No module named 'packaging'", "pip install ..."
    )
    code, report = examine(EGL, trials=[opened, broken])
    assert code == 1
    assert lines_of(report, DoctorLevel.FAIL) == ["FAIL  metaworld  No module named 'packaging'"]


def test_a_machine_that_cannot_render_fails_with_the_command_that_fixes_it(
    examine: Examine,
) -> None:
    code, report = examine(NO_EGL, NO_OSMESA, NO_GLFW)
    assert code == 1
    assert "FAIL  rendering  nothing here renders images (evaluation from states works)" in report
    assert report.count("fix: apt-get install libegl1 libgl1-mesa-dri") == 2
    assert "fix: apt-get install libosmesa6" in report
    assert len(lines_of(report, DoctorLevel.FAIL)) == 4


def test_without_mujoco_nothing_is_probed_and_the_extra_is_named(examine: Examine) -> None:
    code, report = examine(mujoco=None, metaworld=None)
    assert code == 1
    assert "FAIL  mujoco     not installed\n" in report
    assert "warn  metaworld  not installed\n" in report
    assert report.count("fix: pip install 'proctor[metaworld]'") == 2
    assert "rendering" not in report


@pytest.mark.parametrize(
    ("version", "effects"),
    [
        ("3.3.2", "results may differ"),
        ("3.3.3", "darkens LIBERO's textures (since 3.3.3)"),
        ("3.10.0", "LIBERO's contacts (since 3.4)"),
    ],
)
def test_an_untested_mujoco_is_reported_with_its_effects(
    examine: Examine, version: str, effects: str
) -> None:
    code, report = examine(EGL, mujoco=version)
    assert code == 0
    assert f"warn  mujoco     {version}, tested is 3.3.0: " in report
    assert effects in re.sub(r"\s+", " ", report)
    assert "fix: pip install mujoco==3.3.0" in report


def test_texture_and_contact_changes_are_reported_by_version(examine: Examine) -> None:
    assert "contacts" not in examine(EGL, mujoco="3.3.3")[1]
    assert "textures" in examine(EGL, mujoco="3.4.0")[1]


def test_another_metaworld_is_a_warning(examine: Examine) -> None:
    code, report = examine(EGL, metaworld="3.0.0")
    assert code == 0
    assert "warn  metaworld  3.0.0, tested is 3.1.1: may change its tasks" in report
    assert "fix: pip install metaworld==3.1.1" in report


def test_the_tested_versions_are_those_installed_by_set_up() -> None:
    pinned = (Path(__file__).parents[3] / "constraints.txt").read_text().splitlines()
    for name, version in doctor.TESTED.items():
        assert f"{name}=={version}" in pinned


def test_a_container_with_little_memory_gets_a_number_of_workers_that_fits(
    examine: Examine,
) -> None:
    code, report = examine(EGL, memory=GIB)
    assert code == 0
    assert "warn  memory     1.0 GiB usable of 64.0, the container's limit: too little" in report
    assert "fix: proctor eval --eval.batch_size=4 ..." in report


def test_a_broken_mujoco_gl_fails_although_others_render(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    code, report = examine(EGL, NO_OSMESA, NO_GLFW)
    assert code == 1
    assert "FAIL  osmesa     does not render: its library is not installed" in report
    assert "FAIL  rendering  MUJOCO_GL=osmesa does not render here, others do" in report
    assert "fix: unset MUJOCO_GL" in report


def test_rendering_on_the_cpu_beside_a_gpu_is_a_warning(examine: Examine) -> None:
    gpus = GpuInfo(("NVIDIA H200",), "2.13.0", usable=True)
    code, report = examine(NO_EGL, OSMESA, gpus=gpus)
    assert code == 0
    assert "warn  rendering  osmesa draws on the CPU although there is a GPU" in report
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in report
    assert not lines_of(examine(EGL, OSMESA, gpus=gpus)[1], DoctorLevel.WARN)


@pytest.mark.parametrize(
    ("gpus", "level", "text"),
    [
        (GpuInfo(("H200",)), DoctorLevel.OK, "H200; torch is not installed"),
        (GpuInfo(("H200",), "2.13.0"), DoctorLevel.WARN, "H200, which torch 2.13.0 cannot use"),
        (GpuInfo((), "2.13.0", torch_error="OSError: x"), DoctorLevel.FAIL, "cannot be imported"),
        (GpuInfo((), "2.13.0+cpu"), DoctorLevel.OK, "none (torch 2.13.0+cpu)"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_warning(
    gpus: GpuInfo, level: DoctorLevel, text: str
) -> None:
    finding = doctor.gpu_finding(gpus)
    assert finding.level is level
    assert text in finding.text
    assert bool(finding.fix) == (level is not DoctorLevel.OK)


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    finding = doctor.disk_finding(tmp_path)
    assert finding.level is DoctorLevel.WARN
    assert "--output_dir" in finding.fix


def test_the_report_fits_80_columns(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    gpus = GpuInfo(("NVIDIA H200",) * 8, "2.13.0", torch_error="ImportError: " + "x" * 100)
    wordy = GlProbe("egl", error="word " * 60)
    for probes in ((wordy, NO_OSMESA, NO_GLFW), (wordy, OSMESA, GlProbe("glfw", frame_ms=1.0))):
        _, report = examine(*probes, gpus=gpus, mujoco="3.4.1", memory=GIB)
        assert max(map(len, report.splitlines())) <= 80


def test_doctor_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "now"]) == 2
    assert "doctor takes no arguments" in capsys.readouterr().err
    assert cli.main(["doctor", "--help"]) == 0


@pytest.mark.parametrize(
    ("memory", "limit"), [("2147483648", 2 * GIB), ("max", None)], ids=["limited", "free"]
)
def test_memory_limits_of_containers_are_read(
    tmp_path: Path, memory: str, limit: int | None
) -> None:
    (tmp_path / "self").write_text("0::/pod\n")
    (tmp_path / "fs/pod").mkdir(parents=True)
    (tmp_path / "fs/pod/memory.max").write_text(memory)
    assert cgroup_memory_bytes(tmp_path / "self", tmp_path / "fs") == limit


def test_version_one_memory_limits_are_read(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("4:memory:/box\n3:cpu:/box\n")
    (tmp_path / "fs/memory/box").mkdir(parents=True)
    (tmp_path / "fs/memory/box/memory.limit_in_bytes").write_text("1024\n")
    assert cgroup_memory_bytes(tmp_path / "self", tmp_path / "fs") == 1024


@pytest.mark.parametrize(
    ("egl_ms", "osmesa_ms", "chosen"),
    [(12, 40, "egl"), (40, 12, "osmesa"), (12, 12, "egl"), (14, 10, "egl")],
)
def test_the_fastest_backend_is_chosen_and_egl_if_it_is_close(
    egl_ms: float, osmesa_ms: float, chosen: str
) -> None:
    best = gl.pick_fastest([GlProbe("egl", frame_ms=egl_ms), GlProbe("osmesa", "", osmesa_ms)])
    assert best is not None
    assert best.backend == chosen


def test_two_backends_of_one_device_count_as_equally_fast() -> None:
    probes = [GlProbe("egl", frame_ms=90, device="llvmpipe"), GlProbe("osmesa", "", 9, "llvmpipe")]
    assert gl.pick_fastest(probes) is probes[0]


@pytest.mark.parametrize(
    ("probes", "line"),
    [
        ((EGL, OSMESA, NO_GLFW), "rendering with egl (12.3 ms a frame; osmesa 40 ms)"),
        (
            (EGL, GlProbe("osmesa", frame_ms=1612.3, device="llvmpipe"), NO_GLFW),
            "rendering with egl (12.3 ms a frame; osmesa 1,612 ms)",
        ),
        ((GlProbe("egl"), NO_OSMESA, NO_GLFW), "rendering with egl"),
        ((NO_EGL, NO_OSMESA, NO_GLFW), None),
    ],
)
def test_the_chosen_backend_is_described_in_one_line(
    probes: tuple[GlProbe, ...], line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gl, "probe_backends", lambda backends: probes)
    assert gl.describe_chosen_backend() == line


def test_mujoco_gl_leaves_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    tried: list[tuple[str, ...]] = []

    def probe(backends: tuple[str, ...]) -> tuple[GlProbe, ...]:
        tried.append(backends)
        return (OSMESA,)

    monkeypatch.setattr(gl, "probe_backends", probe)
    assert gl.gl_variables(needed=True) == {"MUJOCO_GL": "osmesa"}
    assert set(tried) == {("osmesa",)}
    assert gl.describe_chosen_backend() is None


def test_an_error_without_any_backend_names_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gl, "probe_backends", lambda backends: (NO_EGL, NO_GLFW))
    with refuses(NoGraphics, "gl.unavailable") as refused:
        gl.gl_variables(needed=True)
    assert "egl: its library is not installed; glfw: X11" in str(refused.value)


def test_an_unknown_backend_is_refused_with_the_advice_to_unset_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = (GlProbe("garbage", "RuntimeError: invalid value"),)
    monkeypatch.setattr(gl, "probe_backends", lambda backends: failed)
    monkeypatch.setenv("MUJOCO_GL", "garbage")
    with refuses(NoGraphics, "gl.unavailable") as refused:
        gl.gl_variables(needed=True)
    assert "MUJOCO_GL is set to garbage" in str(refused.value)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(gl, "platform_backends", lambda: ("egl", "osmesa"))
    monkeypatch.setattr(gl, "probe_backends", lambda backends: (NO_EGL,))
    with refuses(NoGraphics, "gl.unavailable") as refused:
        gl.gl_variables(needed=True)
    assert "unset MUJOCO_GL" in str(refused.value)
    assert "apt-get" in str(refused.value)


FAKE_PROGRAM = """
import os, sys, time
backend = os.environ["MUJOCO_GL"]
if backend == "crash":
    os.abort()
if backend == "absent":
    raise AttributeError("'NoneType' object has no attribute 'glGetError'")
if backend == "hang":
    time.sleep(60)
if backend == "blind":
    sys.exit("GLFWError: (65550) b'X11: no display'")
print("drawn", flush=True)
if sys.stdin.readline().strip() == "time":
    print("frame_ms 12.5")
    print("device Fake GPU")
"""


@pytest.fixture
def fake_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(gl_probe, "_PROGRAM", FAKE_PROGRAM)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gl_probe._probe_backends.cache_clear()
    yield
    gl_probe._probe_backends.cache_clear()


@pytest.mark.usefixtures("fake_program")
def test_each_failure_is_one_line_and_costs_no_other_backend() -> None:
    names = ("a", "crash", "absent", "blind", "off", "b")
    probes = gl_probe.probe_backends(names)
    assert {probe.backend: probe.error for probe in probes if not probe.works} == {
        "crash": "exit code -6",
        "absent": "its library is not installed",
        "blind": "X11: no display",
        "off": "rendering is switched off",
    }
    assert probes[0] == GlProbe("a", frame_ms=12.5, device="Fake GPU")
    assert probes[-1].works


@pytest.mark.usefixtures("fake_program")
def test_a_backend_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gl_probe, "_LIMIT_S", 1)
    (probe,) = gl_probe.probe_backends(("hang",))
    assert probe.error == "no image after 1 s"


@pytest.mark.usefixtures("fake_program")
def test_a_single_backend_is_timed_only_when_asked() -> None:
    assert gl_probe.probe_backends(("a", "crash")) == (
        GlProbe("a"),
        GlProbe("crash", error="exit code -6"),
    )
    (timed,) = gl_probe.probe_backends(("a",), always_time=True)
    assert timed.frame_ms == 12.5


@pytest.mark.usefixtures("fake_program")
def test_a_later_process_reads_kept_probes_until_a_driver_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gl_probe, "_PLACES", (str(tmp_path / "drivers"),))
    before = gl_probe.probe_backends(("a", "crash"))
    gl_probe._probe_backends.cache_clear()
    monkeypatch.setattr(gl_probe, "_try_backends", lambda backends, always_time: ())
    assert gl_probe.probe_backends(("a", "crash")) == before
    gl_probe._probe_backends.cache_clear()
    (tmp_path / "drivers").mkdir()
    assert gl_probe.probe_backends(("a", "crash")) == ()


@pytest.mark.usefixtures("fake_program")
def test_probes_are_not_kept_where_nothing_renders(tmp_path: Path) -> None:
    assert not gl_probe.probe_backends(("crash",))[0].works
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.usefixtures("fake_program")
def test_glfw_is_tried_only_where_there_is_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    (probe,) = gl_probe.probe_backends(("glfw",))
    assert probe.error == "no display (DISPLAY is not set)"
    gl_probe._probe_backends.cache_clear()
    monkeypatch.setenv("DISPLAY", ":0")
    (probe,) = gl_probe.probe_backends(("glfw",))
    assert probe.works


def test_torch_and_mujoco_are_not_imported_by_the_doctor_itself() -> None:
    script = (
        "import sys, proctor.system.platform.doctor; print({'torch', 'mujoco'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
