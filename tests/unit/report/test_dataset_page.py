"""The dataset page, served and as one file, and the Rerun recording."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.report.dataset.data import dataset_data
from proctor.report.dataset.page import PageLimits, write_dataset_page
from proctor.report.dataset.site import DatasetSite
from proctor.report.dataset.summary import read_summary
from proctor.report.server.serve import PageServer
from tests.served import serving
from tests.unit.datasets.damage import (
    CAMERA,
    DATA,
    EPISODES,
    IMAGES,
    INFO,
    MOVIE,
    TASKS,
    VIDEO,
    as_v2,
    column_with,
    copy_of,
    entry,
    json_with,
    removed,
)

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serving(DatasetSite(VIDEO)) as server:
        yield server


def get(url: str, part: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={} if part is None else {"Range": part})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def values_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.S)
    assert found
    values: dict[str, Any] = json.loads(found[1])
    return values


def test_the_page_lists_episodes_with_their_tasks_and_lengths(server: PageServer) -> None:
    values = values_of(get(server.url)[1].decode())
    assert values["episodes"]["length"] == [12, 7, 9]
    named = [[values["tasks"][task] for task in tasks] for tasks in values["episodes"]["tasks"]]
    assert named == [["push the block"], ["lift the cup"], ["push the block"]]
    assert [row[:2] for row in values["stats"][:2]] == [
        ["observation.state", "x"],
        ["observation.state", "y"],
    ]


def test_an_episode_is_sent_with_its_numbers_and_where_its_video_is(server: PageServer) -> None:
    status, body = get(f"{server.url}episode/1")
    said = json.loads(body)
    assert (status, said["every"], said["said"]) == (200, 1, [[0, "lift the cup"]])
    assert said["media"] == [{"url": "video/0/0/0.mp4", "from_s": 1.2}]
    series = {one["key"]: one for one in said["series"]}
    assert list(series)[:2] == ["observation.state", "action"], "these come first"
    assert series["action"]["names"] == ["dx", "dy"]
    assert [len(column) for column in series["action"]["values"]] == [7, 7]
    assert series["next.done"]["values"][0][-1] == 1


def test_a_player_gets_the_part_of_a_video_that_it_asks_for(server: PageServer) -> None:
    content = (VIDEO / MOVIE).read_bytes()
    assert get(f"{server.url}video/0/0/0.mp4") == (200, content)
    assert get(f"{server.url}video/0/0/0.mp4", "bytes=100-199") == (206, content[100:200])


def test_a_picture_is_made_of_a_frame(server: PageServer) -> None:
    status, body = get(f"{server.url}picture/0/1/6.jpg")
    assert (status, body[:3]) == (200, b"\xff\xd8\xff")


@pytest.mark.parametrize(
    "path",
    [
        "episode/3", "episode/x", "episode/-1", "video/1/0/0.mp4", "video/0/0/1.mp4", MOVIE, INFO,
        "picture/0/1/7.jpg", "picture/0/3/0.jpg", "picture/1/0/0.jpg", "../secret", "version",
    ],
)  # fmt: skip
def test_nothing_else_is_served(path: str, server: PageServer) -> None:
    assert get(server.url + path)[0] == 404


def test_a_video_that_is_a_link_out_of_the_dataset_is_not_served(tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path, removed(MOVIE))
    (tmp_path / "secret").write_text("secret")
    (root / MOVIE).symlink_to(tmp_path / "secret")
    with serving(DatasetSite(root)) as server:
        status, body = get(f"{server.url}video/0/0/0.mp4")
    assert (status, body) == (404, b"file-000.mp4 is a link that leads out of the dataset")


def test_a_download_from_the_hub_is_links_into_its_blobs_and_is_served(tmp_path: Path) -> None:
    home = tmp_path / "datasets--me--demos"
    root = copy_of(VIDEO, home / "snapshots")
    (home / "blobs").mkdir()
    (root / MOVIE).rename(home / "blobs/abc")
    (root / MOVIE).symlink_to(home / "blobs/abc")
    with serving(DatasetSite(root)) as server:
        assert get(f"{server.url}video/0/0/0.mp4")[0] == 200


def test_an_episode_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path, removed(DATA))
    with serving(DatasetSite(root)) as server:
        status, body = get(f"{server.url}episode/0")
        assert get(server.url)[0] == 200, "the page itself is made of other files"
    assert (status, b"file-000.parquet" in body) == (404, True)


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_older_versions_are_shown_too(version: str, tmp_path: Path) -> None:
    summary = read_summary(as_v2(VIDEO, tmp_path / "old", version))
    mean = dataset_data(summary)["stats"][0][9]
    assert mean == pytest.approx(dataset_data(read_summary(VIDEO))["stats"][0][9])
    with serving(DatasetSite(summary.root)) as server:
        said = json.loads(get(f"{server.url}episode/1")[1])
        assert said["media"] == [{"url": "video/0/0/1.mp4", "from_s": 0.0}]
        assert get(server.url + said["media"][0]["url"])[0] == 200


def written(root: Path, output: Path, *words: str) -> str:
    assert main(["data", "view", str(root), f"--html={output}", *words]) == 0
    return output.read_text()


def test_one_file_holds_the_chosen_episodes_and_their_videos(tmp_path: Path) -> None:
    values = values_of(written(VIDEO, tmp_path / "page.html", "--episodes=0,2"))
    assert values["episodes"]["index"] == [0, 2]
    assert values["total"] == 3
    assert list(values["kept"]) == ["0", "2"]
    assert [list(media) for media in values["kept"]["2"]["media"]] == [["video"]]


def test_pictures_stand_for_videos_where_asked_and_where_there_are_none(tmp_path: Path) -> None:
    values = values_of(written(VIDEO, tmp_path / "a.html", "--pictures"))
    assert len(values["kept"]["1"]["media"][0]["pictures"]) == 7
    values = values_of(written(IMAGES, tmp_path / "b.html"))
    assert [frame for frame, _ in values["kept"]["0"]["media"][0]["pictures"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("room", [0, 3000, 20_000])
def test_the_file_is_no_larger_than_it_may_be(room: int, tmp_path: Path) -> None:
    summary = read_summary(IMAGES)
    sizes = []
    for bounds in (PageLimits(0, as_images=True), PageLimits(room, as_images=True)):
        write_dataset_page(summary, tmp_path / "page.html", [0], bounds)
        sizes.append((tmp_path / "page.html").stat().st_size)
    assert sizes[1] - sizes[0] <= room
    kept = values_of((tmp_path / "page.html").read_text())["kept"]["0"]["media"][0]["pictures"]
    assert (len(kept) > 0) == (room > 10_000)


def test_text_of_others_is_never_markup(tmp_path: Path) -> None:
    def rename(said: dict[str, Any]) -> None:
        said["features"][HOSTILE.replace("/", "")] = said["features"].pop("next.reward")
        said["robot_type"] = HOSTILE

    root = copy_of(
        VIDEO, tmp_path, column_with(TASKS, "task", entry(0, HOSTILE)), json_with(INFO, rename),
        column_with(EPISODES, "tasks", entry(0, [HOSTILE])),
    )  # fmt: skip
    with serving(DatasetSite(root)) as server:
        page = get(server.url)[1].decode()
    assert "<img" not in page
    assert HOSTILE in values_of(page)["tasks"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--html=x.html", "--episodes=7"], "episode 7 (choose 0-2)"),
        (["--html=x.html", "--max_mb=0"], "--max_mb"),
        (["--html=x.html", "--rerun=x.rrd"], "--rerun"),
        (["--html=x.html", "--port=1"], "--port"),
        (["--rerun=x.rrd", "--pictures"], "--pictures"),
        (["--episodes=1"], "--episodes"),
        (["--port=123456"], "--port"),
        (["--speed=1"], "--speed"),
    ],
)
def test_bad_words_get_one_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "view", str(VIDEO), *words]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("source", "length"), [(VIDEO, 12), (IMAGES, 5)])
def test_a_recording_for_rerun_has_every_frame(source: Path, length: int, tmp_path: Path) -> None:
    chunk = pytest.importorskip("rerun.chunk", reason="pip install 'proctor[rerun]'")
    output = tmp_path / "x.rrd"
    assert main(["data", "view", str(source), f"--rerun={output}", "--episodes=0"]) == 0
    assert list(tmp_path.iterdir()) == [output]
    chunks = chunk.RrdReader(str(output)).stream().to_chunks()
    frames = {one.entity_path: one.num_rows for one in chunks if not one.is_static}
    for name in ("observation.state", "action", CAMERA):
        assert frames[f"/episode\\ 0/{name}"] == length
    assert frames["/episode\\ 0/task"] == 1


def test_without_rerun_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    assert main(["data", "view", str(VIDEO), f"--rerun={tmp_path / 'x.rrd'}"]) == 2
    assert "pip install 'proctor[rerun]'" in capsys.readouterr().err
