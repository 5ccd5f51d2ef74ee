"""`make docs-pictures`: the pictures of the documentation, from real runs and from the code.

    .venv/bin/python scripts/docs_pictures.py [architecture] [speed] [plan] [perturbations] [pages]

``architecture`` draws the layers that import-linter enforces. ``speed`` draws the table of
docs/measurements.md that compares Proctor with LeRobot. ``plan`` draws how many
episodes a difference needs, as `proctor plan` computes it. ``perturbations`` renders the first
image of a Meta-World episode, clean and perturbed. ``pages`` records, trains, evaluates and
compares on Meta-World (minutes), and takes screenshots of the pages with Chromium.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from tutorial import SMALL_ACT

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.perturbations import LEVELS
from proctor.benchmarks.perturbations.benchmark import PerturbedBenchmark
from proctor.benchmarks.perturbations.dimensions import dimensions_of
from proctor.features import Array, FeatureKind
from proctor.stats.sample_size import episodes_for_difference, pairs_for_difference

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
TASKS = "reach-v3,push-v3,drawer-open-v3,button-press-v3,peg-insert-side-v3"
DIMENSIONS = ("camera", "light", "texture", "noise", "blur", "occlusion", "robot_pose")
"""Dimensions whose effect an image shows."""
STYLE = """
svg{--ground:#fff;--ink:#1f2328;--quiet:#59636e;--line:#c5ced8;--box:#eef4fb;--bar:#0b62c4;--old:#8c959f}
@media(prefers-color-scheme:dark){
svg{--ground:#0d1117;--ink:#e6edf3;--quiet:#9aa4af;--line:#3d444d;--box:#182334;--bar:#6cb2ff;--old:#7d8590}}
text{font:13px system-ui,sans-serif;fill:var(--ink)} .quiet{fill:var(--quiet);font-size:11.5px}
.title{font-weight:600;font-size:15px} .end{text-anchor:end} .middle{text-anchor:middle}
.ground{fill:var(--ground)} .box{fill:var(--box);stroke:var(--line)} .bar{fill:var(--bar)}
.old{fill:var(--old)}
"""
_ROLES = {
    "commands": "command line and Python API",
    "rl": "online reinforcement learning: actors and a learner",
    "evaluation": "loops: evaluate, train, record, control a robot",
    "engine": "scheduler, worker processes, shared memory",
    "config": "flags, config files, help",
    "report": "plug-in table, callbacks, pages, policy server, robots",
    "policies": "policies, benchmarks, datasets, run folders, statistics",
    "system": "operating system, network protocols, types, errors",
}
"""What a layer is for, by one of its packages."""


def main(words: list[str]) -> int:
    """Draw the pictures that are named, or all."""
    makers = {"architecture": architecture, "speed": speed, "plan": plan}
    makers |= {"perturbations": perturbations, "pages": pages}
    unknown = set(words) - set(makers)
    if unknown:
        print(f"unknown picture {', '.join(unknown)} (choose from {', '.join(makers)})")
        return 2
    for name in words or makers:
        makers[name]()
    return 0


def architecture() -> None:
    """Draw the layers of the package from pyproject.toml, top to bottom."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = [re.findall(r"proctor\.(\w+)", layer) for layer in layers]
    drawn = [_text(16, 26, "Layers: a package imports only packages below it", "title")]
    y = 42
    for names in rows:
        role = next((text for name, text in _ROLES.items() if name in names), "")
        drawn.append(f'<rect class="box" x="16" y="{y}" width="728" height="46" rx="6"/>')
        drawn.append(_text(28, y + 19, role))
        drawn.append(_text(28, y + 37, " · ".join(names), "quiet"))
        y += 54
    _write("architecture", 760, y + 6, drawn, "Layers of the package proctor, from commands down")


def speed() -> None:
    """Draw the wall times of LeRobot and Proctor, from the table in docs/measurements.md."""
    cases = list(measured_pairs((ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")))
    longest = max(theirs for _, theirs, _ in cases)
    drawn = [_text(16, 26, "Seconds for the same evaluation, LeRobot 0.6.1 and Proctor", "title")]
    y = 44
    for case, theirs, ours in cases:
        drawn.append(_text(16, y + 12, case, "quiet"))
        for offset, seconds, kind in ((18, theirs, "old"), (34, ours, "bar")):
            width = 560 * seconds / longest
            drawn.append(
                f'<rect class="{kind}" x="16" y="{y + offset}" width="{width:.1f}" height="13"/>'
            )
            label = f"{seconds:.0f} s" + ("" if kind == "old" else f", {theirs / ours:.1f}x faster")
            drawn.append(_text(22 + width, y + offset + 11, label, "quiet"))
        y += 60
    drawn.append(f'<rect class="old" x="16" y="{y}" width="12" height="12"/>')
    drawn.append(_text(34, y + 11, "LeRobot 0.6.1", "quiet"))
    drawn.append(f'<rect class="bar" x="136" y="{y}" width="12" height="12"/>')
    drawn.append(
        _text(154, y + 11, "Proctor; two cores, command and machine in Measurements", "quiet")
    )
    _write("speed", 760, y + 26, drawn, "Wall time of evaluations with LeRobot and with Proctor")


def measured_pairs(text: str) -> Iterator[tuple[str, float, float]]:
    """Yield case, LeRobot's seconds and Proctor's seconds of the appendix's longest cases."""
    row = re.compile(
        r"^\| ([^|\n]*): LeRobot \| ([\d.]+) s .*\n\|[^|]*Proctor \| ([\d.]+) s ", re.MULTILINE
    )
    pairs = [(case, float(theirs), float(ours)) for case, theirs, ours in row.findall(text)]
    yield from sorted(pairs, key=lambda pair: -pair[1])[:6]


PLANNED = (0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14, 0.2, 0.25)
"""Differences in the chart of `proctor plan`."""


def plan() -> None:
    """Draw the episodes of each policy that a difference from 50% needs, paired and not."""
    curves = {
        "other seeds": [episodes_for_difference(0.5, 0.5 + d) for d in PLANNED],
        "same seeds, 70% of pairs alike": [pairs_for_difference(d, 0.7) for d in PLANNED],
        "same seeds, 90% of pairs alike": [
            pairs_for_difference(d, 0.9) for d in PLANNED if d < 0.1
        ],
    }
    title = "Episodes of each policy to find a difference (alpha 0.05, power 0.8)"
    drawn = [_text(16, 26, title, "title")]
    for n in (30, 100, 300, 1000, 3000, 10000):
        y = _height(n)
        drawn.append(f'<path d="M70 {y:.0f}H560" style="stroke:var(--line)"/>')
        drawn.append(_text(62, y + 4, f"{n:,}", "quiet end"))
    for difference in PLANNED:
        x = _place(difference)
        drawn.append(_text(x, 372, f"{100 * difference:g}", "quiet middle"))
    drawn.append(_text(315, 394, "difference of the success rates, points", "quiet middle"))
    for (name, numbers), colour in zip(curves.items(), ("old", "bar", "bar"), strict=True):
        places = [(_place(d), _height(n)) for d, n in zip(PLANNED, numbers, strict=False)]
        line = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        dashes = ";stroke-dasharray:6 4" if "70%" in name else ""
        style = f"fill:none;stroke:var(--{colour});stroke-width:2{dashes}"
        drawn.append(f'<polyline points="{line}" style="{style}"/>')
        x, y = places[-1]
        aside = (x, y + 22, name, "quiet end") if "90%" in name else (x + 8, y + 4, name, "quiet")
        drawn.append(_text(*aside))  # the other curves pass to the right of the lowest one
    _write("plan", 760, 408, drawn, "Episodes that a difference of success rates needs")


def _place(difference: float) -> float:
    """Return the x of a difference on the chart's logarithmic axis."""
    return 84 + 440 * math.log(difference / PLANNED[0]) / math.log(PLANNED[-1] / PLANNED[0])


def _height(n: float) -> float:
    """Return the y of a number of episodes on the chart's logarithmic axis."""
    return 350 - 300 * math.log(n / 30) / math.log(10000 / 30)


def perturbations() -> None:
    """Render an episode's first image: a row for each dimension; clean, level 1, 2, 3."""
    from PIL import Image

    from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig

    config = MetaworldConfig(
        task="button-press-v3", observation_height=144, observation_width=144, shadow_map=1024
    )
    sheet = perturbation_sheet(Metaworld(config), DIMENSIONS)
    Image.fromarray(sheet).save(IMAGES / "perturbations.jpg", quality=80, optimize=True)


def perturbation_sheet(benchmark: Benchmark, names: Sequence[str], seed: int = 1000) -> Array:
    """Return the first images of the benchmark's first task, in rows by dimension."""
    features = benchmark.features()
    cameras = [key for key, feature in features.items() if feature.kind is FeatureKind.VISUAL]
    os.environ |= benchmark.preflight(cameras)
    perturbed = PerturbedBenchmark(benchmark, dimensions_of(names, benchmark), LEVELS)
    clean, *variants = perturbed.tasks()
    sim = perturbed.make_sim(clean)
    rows: dict[str, list[Array]] = {}
    try:
        for task in (clean, *variants[: len(names) * len(LEVELS)]):
            sim.reset(perturbed.spec(task, 0, seed))
            seen = sim.observe(cameras)
            image = np.concatenate([seen[key] for key in cameras], axis=1)
            if task.perturbation is None:
                rows = {name: [image] for name in names}
            else:
                rows[task.perturbation.dimension].append(image)
    finally:
        sim.close()
    return np.concatenate([np.concatenate(row, axis=1) for row in rows.values()], axis=0)


def pages() -> None:
    """Run the examples and take a screenshot of each kind of page."""
    with tempfile.TemporaryDirectory(prefix="proctor-pictures-") as name:
        folder = Path(name)
        _run_examples(folder)
        browser = _chromium()
        try:
            for picture, page in (
                ("report", folder / "expert" / "report.html"),
                ("comparison", folder / "compare.html"),
                ("dataset", folder / "demos.html"),
                ("training", folder / "act" / "report.html"),
            ):
                _screenshot(browser, page, IMAGES / f"{picture}.png")
        finally:
            browser.quit()


def _run_examples(folder: Path) -> None:
    world = ["--env.type=metaworld", f"--env.task={TASKS}"]
    small = ["--env.observation_height=128", "--env.observation_width=128"]
    noisy = ["--record.noise=0.3", "--record.noise_share=0.5", "--seed=70000"]
    states = ["--record.images=false", "--record.extra=environment_state"]
    demos = f"--dataset.root={folder}/demos"
    for words in (
        ["eval", "--policy.type=expert", *world, "--eval.n_episodes=20", "--video.episodes=2",
         "--video.which=first", f"--output_dir={folder}/expert"],
        ["record", "--policy.type=expert", *world, "--dataset.repo_id=me/demos", demos,
         "--record.n_episodes=20", *states, *noisy],
        ["train", "--dataset.repo_id=me/demos", demos, *SMALL_ACT, "--batch_size=64",
         "--steps=1000", "--log_freq=20", "--num_workers=0", "--optimizer.lr=1e-3",
         f"--output_dir={folder}/act"],
        ["eval", f"--policy.path={folder}/act/checkpoints/last/pretrained_model", *world,
         "--eval.n_episodes=20", f"--output_dir={folder}/trained"],
        ["compare", f"{folder}/expert", f"{folder}/trained", f"--html={folder}/compare.html"],
        ["record", "--policy.type=expert", *world, *small, "--dataset.repo_id=me/seen",
         f"--dataset.root={folder}/seen", "--record.n_episodes=1"],
        ["data", "view", f"{folder}/seen", f"--html={folder}/demos.html"],
    ):  # fmt: skip
        print("proctor", *words, flush=True)
        done = subprocess.run([ROOT / ".venv/bin/proctor", *words], check=False)  # noqa: S603
        if done.returncode not in (0, 1):
            raise SystemExit(f"exit code {done.returncode}")


def _chromium() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    names = ("chromium", "chromium-browser", "google-chrome")
    options.binary_location = next(filter(None, map(shutil.which, names)))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def _screenshot(browser: Any, page: Path, target: Path) -> None:
    from PIL import Image

    size = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    browser.implicitly_wait(2)
    target.parent.mkdir(exist_ok=True)
    browser.save_screenshot(str(target))
    with Image.open(target) as picture:
        fewer = picture.convert("RGB").quantize(128)
    fewer.save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1000} kB")


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


def _write(name: str, width: int, height: int, drawn: list[str], label: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(label)}">'
        f"<style>{STYLE.strip()}</style>"
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>{"".join(drawn)}</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
