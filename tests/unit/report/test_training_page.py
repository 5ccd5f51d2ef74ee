"""The page of a training, for folders in any state."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.errors import UsageError
from proctor.report.training import data
from proctor.report.training.data import read_training_folder, training_data
from proctor.report.training.page import write_training_page
from tests.refusals import refuses
from tests.served import served
from tests.training_folders import RECORD, a_log, reading, write_training


def values(folder: Path) -> dict:
    return training_data(read_training_folder(folder), folder)


def shown(page: Path) -> dict:
    text = page.read_text().split('<script type="application/json" id="run">')[1]
    return dict(json.loads(text.split("</script>")[0]))


def test_the_page_shows_curves_rates_time_and_the_command(tmp_path: Path) -> None:
    seen = shown(write_training_page(write_training(tmp_path)))
    assert seen["title"] == "act, trained on me/demos"
    assert (seen["step"], seen["planned"], seen["folder"]) == (400, 400, ".")
    assert seen["curves"]["step"] == list(range(10, 401, 10))
    assert seen["curves"]["lr"][4] == pytest.approx(9.6347e-05)
    assert seen["held_out"] == {"step": [100, 200, 400], "loss": [3.0, 1.5, 0.75]}
    assert seen["time"]["total"] == pytest.approx(400 * 0.02)
    assert seen["time"]["waiting"] == pytest.approx(0.8)
    command = "proctor train --dataset.repo_id=me/demos --policy.type=act --steps=400"
    assert seen["command"] == command


def test_every_evaluation_has_its_rate_its_run_and_the_checkpoints_that_are_left(
    tmp_path: Path,
) -> None:
    seen = values(write_training(tmp_path))
    first, broken, last = seen["evaluations"]
    assert (first["step"], first["rate"], first["interval"]) == (200, 0.875, [0.529, 0.978])
    assert first["errors"] == "1 error (77.8% to 88.9% if it had counted)"
    assert (first["run"], first["kept"]) == ("eval/000200", ["000200", "best"])
    assert (broken["rate"], broken["run"]) == (None, None)
    assert "no</b> display" in broken["problem"]
    assert last["kept"] == ["000400", "last"]
    assert seen["best"] == 200
    assert seen["films"]["step"] == 400
    assert [film["outcome"] for film in seen["films"]["videos"]] == ["success"]


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_training(tmp_path)
    first = write_training_page(folder).read_bytes()
    assert write_training_page(folder).read_bytes() == first


def test_a_training_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(RECORD))
    seen = shown(write_training_page(tmp_path))
    assert (seen["step"], seen["best"], seen["films"], seen["evaluations"]) == (0, None, None, [])


def test_time_counts_the_steps_that_a_reading_is_of_and_not_those_before_a_resume(
    tmp_path: Path,
) -> None:
    lines = [reading(1010, steps=10), reading(1020, steps=5)]
    assert values(write_training(tmp_path, lines))["time"]["total"] == pytest.approx(15 * 0.02)


def test_long_curves_are_thinned_to_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_MOST_POINTS", 2)
    lines = [reading(step, loss=step) for step in (1, 2, 3, 4)] + [reading(5, loss=9)]
    curves = values(write_training(tmp_path, lines))["curves"]
    assert (curves["each"], curves["step"], curves["loss"]) == (3, [3, 5], [2.0, 6.5])


def test_what_others_wrote_into_the_log_breaks_no_page_and_is_no_markup(tmp_path: Path) -> None:
    odd = [
        {"kind": "train", "step": "<b>"},
        {"kind": "train"},
        {"kind": "<script>"},
        {"kind": "evaluation", "step": 10**30},
        reading(10, grad_norm=None, loss=1e299, parts={"</script><b>": 1.0}),
    ]
    folder = write_training(tmp_path, odd)
    page = write_training_page(folder)
    assert shown(page)["curves"]["grad_norm"] == [None]
    assert "<b>" not in page.read_text()


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    folder = write_training(tmp_path)
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"kind": "train", "st')
    assert values(folder)["curves"]["step"][-1] == 400


def test_an_evaluation_that_cannot_be_read_is_a_notice(tmp_path: Path) -> None:
    folder = write_training(tmp_path)
    (folder / "eval/000400/run.json").write_text("{")
    seen = values(folder)
    assert seen["films"] is None
    assert "step 400 cannot be read" in seen["warnings"][0]


def test_a_folder_that_holds_no_training_is_refused(tmp_path: Path) -> None:
    with refuses(UsageError, "training.not-found"):
        write_training_page(tmp_path)


def test_proctor_report_writes_it_anywhere(tmp_path: Path, capsys) -> None:
    folder = write_training(tmp_path / "run", a_log())
    assert main(["report", str(folder), f"--output={tmp_path / 'page.html'}"]) == 0
    assert f"report: {tmp_path / 'page.html'}" in capsys.readouterr().out
    assert shown(tmp_path / "page.html")["folder"] == "run"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_view_lists_a_training_beside_its_evaluations(tmp_path: Path) -> None:
    write_training(tmp_path / "train/<b>first")
    with served(tmp_path) as server:
        status, page = get(server.url)
        assert status == 200
        assert '"kind":"training","what":"act, trained on me/demos"' in page
        assert "87.5% [52.9, 97.8] n=8, 1 error (77.8% to 88.9% if it had counted), best" in page
        assert '"done":400,"planned":400,"unit":"steps","status":"complete"' in page
        assert "train/\\u003cb\\u003efirst/eval/000400" in page
        assert "<b>first" not in page


def test_a_training_is_served_as_its_page_and_follows_the_log(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "first")
    with served(tmp_path) as server:
        status, page = get(server.url + "first/")
        assert status == 200
        version = get(server.url + "first/version")[1]
        assert f'"live":"{version}"' in page
        with (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(reading(410)) + "\n")
        assert get(server.url + "first/version")[1] != version
        assert '"step":410' in get(server.url + "first/")[1]
        assert get(server.url + "first/eval/000400/")[0] == 200, "where the page's links lead"
        assert get(server.url + "first/train.json")[0] == 200
        assert get(server.url + "first/checkpoints/000400/x")[0] == 404, "nothing else is served"
        assert get(server.url + "first/checkpoints/")[0] == 404


@pytest.mark.parametrize("name", ["log.jsonl", "train.json", "eval/000400/episodes.jsonl"])
def test_no_link_of_a_training_leads_out_of_what_is_served(tmp_path: Path, name: str) -> None:
    folder = write_training(tmp_path / "runs/first")
    (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to(tmp_path / "secret")
    with served(tmp_path / "runs") as server:
        status, page = get(server.url + "first/")
        assert (status, "leads out of the folder" in page) == (404, True)
        assert "leads out of the folder" in get(server.url)[1]
