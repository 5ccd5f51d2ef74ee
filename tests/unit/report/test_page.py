"""The values of the report page and its HTML file, without a browser."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.errors import PolicyError, RunFolderError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.report.claims.reproduce import episode_command_prefix, run_command
from proctor.report.run.page import page_html, write_page
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.run.stopped import end_reason
from proctor.report.run.timeline import make_timeline, throughput_limit, time_spent
from proctor.runs.journal import JOURNAL_FILE, read_journal, video_path
from proctor.runs.records import PlannedTask
from proctor.runs.videos import WARNINGS_FILE
from proctor.types import Outcome
from tests.refusals import refuses
from tests.run_folders import BEGAN, RECORD, eight_episodes, episode, infected, write_run


def data_of(folder: Path) -> dict[str, Any]:
    return page_data(load_run(folder))


def embedded(page: Path) -> dict[str, Any]:
    """Return the JSON values that are embedded in the page."""
    text = page.read_text(encoding="utf-8")
    block = text.split('<script type="application/json" id="run">')[1].split("</script>")[0]
    values: dict[str, Any] = json.loads(block)
    return values


def single_commands(data: dict[str, Any]) -> list[str]:
    """Join the parts of commands as the page's script does."""
    base, flag = data["episode_command"]
    chosen = zip(data["episodes"]["task"], data["episodes"]["index"], strict=True)
    return [f"{base} {data['tasks'][task]['flags']} {flag}{index}" for task, index in chosen]


def test_the_headline_has_an_interval_and_errors_stand_beside_it(tmp_path: Path) -> None:
    overall = data_of(write_run(tmp_path, eight_episodes()))["overall"]
    assert (overall["k"], overall["n"], overall["errors"]) == (4, 7, 1)
    assert overall["interval"] == pytest.approx([0.2505, 0.8418], abs=1e-4)
    assert overall["bounds"] == pytest.approx([4 / 8, 5 / 8])


def test_episodes_that_diverged_are_failures_with_their_own_word(tmp_path: Path) -> None:
    rows = [*eight_episodes(), episode(0, 4, Outcome.DIVERGED)]
    data = data_of(write_run(tmp_path, rows))
    assert (data["overall"]["k"], data["overall"]["n"]) == (4, 8)
    assert [task["diverged"] for task in data["tasks"]] == [1, 0]
    assert data["episodes"]["outcome"].count(1) == 1
    assert any("broke at 0/4" in text for text in data["errors"])


def test_without_errors_there_are_no_bounds(tmp_path: Path) -> None:
    rows = [row for row in eight_episodes() if row.outcome is not Outcome.ERROR]
    assert data_of(write_run(tmp_path, rows))["overall"]["bounds"] is None


def test_a_run_without_finished_episodes_has_no_rate(tmp_path: Path) -> None:
    data = data_of(write_run(tmp_path, []))
    assert data["overall"]["rate"] is None
    assert data["overall"]["interval"] is None
    assert (data["recorded"], data["planned"], data["tasks"]) == (0, 8, [])
    assert write_page(tmp_path).exists()


def test_groups_appear_only_where_they_say_more_than_tasks(tmp_path: Path) -> None:
    two = [
        episode(task, 0, Outcome.SUCCESS, suite=suite) for suite in ("a", "b") for task in (0, 1)
    ]
    groups = data_of(write_run(tmp_path / "two", two))["groups"]
    assert [group["name"] for group in groups] == ["a", "b"]
    assert data_of(write_run(tmp_path / "one", eight_episodes()))["groups"] == []


def test_damaged_lines_are_skipped_and_named(tmp_path: Path) -> None:
    write_run(tmp_path, eight_episodes())
    journal = tmp_path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2], lines[5] = b'{"suite": 7}\n', b"\xff\xfe not json\n"
    journal.write_bytes(b"".join(lines) + b'{"cut sho')
    data = data_of(tmp_path)
    assert data["damaged"] == [3, 6]
    assert data["recorded"] == 6


def test_times_of_a_resumed_run_lie_side_by_side_without_the_pause() -> None:
    first, second = episode(0, 0, Outcome.SUCCESS), episode(0, 1, Outcome.SUCCESS)
    pause = 86_400.0
    later = replace(second, start_time=second.start_time + pause, end_time=second.end_time + pause)
    timeline = make_timeline([first, later], [BEGAN, BEGAN + pause])
    assert [span.start_s for span in timeline.spans] == pytest.approx([0.0, 2.0])
    assert timeline.breaks == pytest.approx([2.0])
    assert timeline.total_s == pytest.approx(3.5)


def test_the_time_spent_adds_up_to_all_the_time_there_was() -> None:
    rows = eight_episodes()
    timeline = make_timeline(rows, [BEGAN])
    spent = time_spent(rows, timeline)
    assert sum(spent.values()) == pytest.approx(timeline.worker_s)
    assert spent["simulate"] == pytest.approx(7 * 0.6)
    assert spent["other"] == pytest.approx(7 * 0.2)
    assert timeline.worker_s == pytest.approx(2 * timeline.total_s)


def test_the_busier_of_workers_and_policy_sets_the_limit() -> None:
    rows = eight_episodes()
    timeline = make_timeline(rows, [BEGAN])
    spent = time_spent(rows, timeline)
    for infer_s, fraction in ((0.0, 7 * 0.9 / timeline.worker_s), (7.0, 7.0 / timeline.total_s)):
        limit = throughput_limit(spent, timeline, infer_s)
        assert limit is not None
        assert limit.fraction == pytest.approx(fraction)
    assert 0.3 < 7 * 0.9 / timeline.worker_s < 7.0 / timeline.total_s < 1
    nothing = make_timeline([], [BEGAN])
    assert throughput_limit(time_spent([], nothing), nothing, 0.0) is None


def test_what_is_to_be_known_of_videos_is_on_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, eight_episodes())
    assert data_of(folder)["film_warnings"] == []
    (folder / "videos").mkdir()
    (folder / WARNINGS_FILE).write_text('{"videos/point_0/episode_2.mp4": "it differs"}')
    assert data_of(folder)["film_warnings"] == ["it differs"]
    (folder / WARNINGS_FILE).write_text("{")
    with refuses(RunFolderError, "run.damaged") as refused:
        data_of(folder)
    assert "warnings.json" in str(refused.value)


def test_a_video_is_shown_when_its_file_is_there(tmp_path: Path) -> None:
    rows = eight_episodes()
    folder = write_run(tmp_path / "run", rows)
    video = folder / rows[2].video
    video.parent.mkdir(parents=True)
    video.write_bytes(b"")
    shown = data_of(folder)["episodes"]["video"]
    assert shown == [None, None, "videos/point_0/episode_2.mp4", *[None] * 5]
    page = write_page(folder, tmp_path / "elsewhere.html")
    assert embedded(page)["folder"] == "run"


def test_a_video_never_lies_outside_the_run_folder() -> None:
    place = video_path(("../../etc/x", 1, 2))
    assert re.fullmatch(r"videos/______etc_x\.[0-9a-f]{12}_1/episode_2\.mp4", place)


def test_no_two_episodes_share_a_video() -> None:
    suites = ["kitchen.1", "kitchen 1", "kitchen_1", "kitchen/1", "küche", "k\ud800che", "k" * 300]
    suites += ["k" * 301, "k" * 200, "", ".", "a_1", "a"]
    keys = [(suite, task, index) for suite in suites for task in (0, 1, 10) for index in (0, 10)]
    places = {video_path(key) for key in keys}
    assert len(places) == len(keys)
    assert all(len(part) <= 255 for place in places for part in place.split("/"))
    assert video_path(("libero_10", 3, 4)) == "videos/libero_10_3/episode_4.mp4"
    assert video_path(("reach-v3", 0, 4)) == "videos/reach-v3_0/episode_4.mp4"


def test_long_and_repeated_errors_keep_the_page_small(tmp_path: Path) -> None:
    broken = [replace(episode(0, i, Outcome.ERROR), error="x" * 9000 + "END") for i in range(100)]
    data = data_of(write_run(tmp_path, broken))
    assert len(data["errors"]) == 1
    assert data["errors"][0].endswith("END")
    assert len(data["errors"][0]) < 1700


def test_the_worst_thousand_episodes_stay_under_2_mb(tmp_path: Path) -> None:
    broken = [
        replace(episode(i % 50, i // 50, Outcome.ERROR), error=f"{i} " + "line\n" * 1000)
        for i in range(1000)
    ]
    assert write_page(write_run(tmp_path, broken)).stat().st_size < 2_000_000


@pytest.mark.alone
def test_fifty_tasks_of_fifty_episodes_take_well_under_3_s(tmp_path: Path) -> None:
    rows = [episode(task, i, Outcome.SUCCESS) for task in range(50) for i in range(50)]
    write_run(tmp_path, rows)
    start = time.process_time()
    write_page(tmp_path)
    assert time.process_time() - start < 3


def test_numbers_that_json_lacks_become_missing_ones(tmp_path: Path) -> None:
    row = replace(episode(0, 0, Outcome.FAILURE), sum_reward=float("inf"))
    write_run(tmp_path, [])
    run = replace(load_run(tmp_path), rows=[row])
    assert page_data(run)["episodes"]["reward"] == [None]


def test_nothing_from_outside_is_markup(tmp_path: Path) -> None:
    text = '</script><script>alert(1)</script><!-- {{script}} "onerror=\u2028\udcff'
    _, record = infected(text)
    rows, _ = infected(text.removesuffix("\udcff"))
    page = write_page(write_run(tmp_path, rows, record)).read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert page.lower().count("<script") == 2
    assert "\u2028" not in page
    assert embedded(tmp_path / "report.html")["title"] == f"{text} on {text}"


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = write_page(write_run(tmp_path, eight_episodes())).read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert page.count("http") == page.count("http-equiv") + page.count("http://www.w3.org/2000/svg")


def test_the_same_folder_gives_the_same_page(tmp_path: Path) -> None:
    page = write_page(write_run(tmp_path, eight_episodes())).read_bytes()
    again = write_page(write_run(tmp_path, list(reversed(eight_episodes())))).read_bytes()
    assert again == page
    files = ["run.json", "episodes.jsonl"]
    assert page_html({**data_of(tmp_path), "folder": ".", "files": files}).encode() == page


def test_tasks_of_which_nothing_has_ended_are_on_the_page(tmp_path: Path) -> None:
    planned = [PlannedTask("point", n, f"point-{n}", "reach the goal", 50, 6) for n in range(3)]
    rows = eight_episodes()
    data = data_of(write_run(tmp_path, rows, replace(RECORD, tasks=planned, planned_episodes=18)))
    assert [(task["name"], task["n"], task["planned"]) for task in data["tasks"]] == [
        ("point-0", 4, 6),
        ("point-1", 3, 6),
        ("point-2", 0, 6),
    ]
    assert data["tasks"][2]["rate"] is None
    assert data["tasks"][2]["instruction"] == "reach the goal"
    assert data["episodes"]["task"] == [0] * 4 + [1] * 4


def test_the_time_left_is_that_of_the_newest_session(tmp_path: Path) -> None:
    rows, planned = eight_episodes(), replace(RECORD, planned_episodes=16)
    resumed = replace(planned, sessions=[BEGAN, BEGAN + 4.6])
    # Eight episodes ended within 8.5 s; of those since the resume, four within 3.9 s.
    assert data_of(write_run(tmp_path / "a", rows, planned))["left_s"] == 8.5
    assert data_of(write_run(tmp_path / "b", rows, resumed))["left_s"] == 7.8
    assert data_of(write_run(tmp_path / "c", rows))["left_s"] == 0.0
    assert data_of(write_run(tmp_path / "d", [], planned))["left_s"] is None


def test_the_page_says_what_stopped_the_last_session_and_no_earlier_one(tmp_path: Path) -> None:
    record = replace(RECORD, planned_episodes=16)
    folder = write_run(tmp_path, eight_episodes(), record)
    said = {"proctor": {"complete": False, "stopped": None, "session": 1, "ended": "a full disk"}}
    (folder / "eval_info.json").write_text(json.dumps(said))
    data = data_of(folder)
    assert (data["status"], data["interrupted"]) == ("incomplete", "a full disk")
    assert data["resume"] == f"proctor eval --resume --output_dir={tmp_path}"
    write_run(tmp_path, eight_episodes(), replace(record, sessions=[BEGAN, BEGAN + 100]))
    assert data_of(folder)["interrupted"] is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, None),
        (KeyboardInterrupt(), "it was interrupted by Ctrl-C (SIGINT)"),
        (KeyboardInterrupt(signal.SIGHUP), "its terminal went away (SIGHUP)"),
        (PolicyError("actions hold NaN"), "actions hold NaN"),
        (ValueError("a\x1b[2Jb"), "ValueError: a\\x1b[2Jb"),
    ],
)
def test_what_ends_a_session_is_one_line(error: BaseException | None, said: str | None) -> None:
    assert end_reason(error) == said


@pytest.mark.parametrize(
    "given",
    [
        {"policy.type": "random", "env.type": "fake", "env.faults": '{"0/1/2": "raise"}'},
        {
            "policy": {"type": "random", "inputs": ["observation.state"]},
            "env": {"type": "fake", "endless": True, "faults": {"0/1/2": "raise"}},
            "seed": 7,
        },
        {"policy.type": "random", "env.type": "fake", "env.break_once_in": "it's a $(folder)"},
    ],
)
def test_the_command_gives_the_same_config_again(given: dict[str, Any]) -> None:
    words = shlex.split(run_command(given, build(EvalConfig, given).as_dict()))
    flags = dict(word.removeprefix("--").split("=", 1) for word in words[2:])
    assert build(EvalConfig, flags) == build(EvalConfig, given)


def test_a_single_episode_replaces_what_chose_the_others() -> None:
    given = {
        "env.type": "fake", "env.task": "a,b", "env.task_ids": "0,1", "eval.episodes": "3",
        "wandb.enable": "true",
    }  # fmt: skip
    assert episode_command_prefix(given, {}) == "proctor eval --env.type=fake"


def test_a_dict_that_is_no_section_of_the_config_is_one_flag() -> None:
    given = {"rename_map": {"a": "b"}}
    resolved = {"policy": {"rename_map": {"a": "b"}}}
    assert run_command(given, resolved) == """proctor eval --rename_map='{"a":"b"}'"""


def test_single_episode_commands_give_exactly_those_episodes(
    run: Callable[..., Evaluation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Random actions are keyed by the episode's index: choosing it by its seed would not do.
    evaluation = run(env__n_tasks=3, eval__n_episodes=4)
    data = data_of(evaluation.path)
    for place in (2, 7, 9):
        row, again = evaluation.rows[place], tmp_path / f"again{place}"
        words = shlex.split(single_commands(data)[place])
        assert main([*words[1:], f"--output_dir={again}"]) == 0
        assert [one.digest for one in read_journal(again).rows] == [row.digest]
        assert load_run(again).record.fingerprint == data["fingerprint"]


def test_every_run_ends_with_its_page(run: Callable[..., Evaluation]) -> None:
    evaluation = run(env__n_tasks=2)
    assert embedded(evaluation.path / "report.html")["recorded"] == 8


def test_report_writes_the_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", eight_episodes(), replace(RECORD, planned_episodes=None))
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    assert main(["report", str(folder), f"--output={tmp_path / 'page.html'}"]) == 0
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["{}"], "run.json"),
        ([], "RUN"),
        (["{}", "--outptu=x"], "--outptu"),
        (["{}/run", "--output={}/no/such/page.html"], "no/such/page.html"),
    ],
)
def test_bad_input_gets_one_line(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", [])
    assert main(["report", *(word.format(tmp_path) for word in words)]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("episodes", ["4", "-1", "[]"])
def test_an_episode_that_is_not_there_is_refused(episodes: str) -> None:
    flags = {"policy.type": "random", "env.type": "fake", "eval.n_episodes": "4"}
    with pytest.raises(UsageError) as refused:
        build(EvalConfig, {**flags, "eval.episodes": episodes})
    assert "--eval.episodes" in str(refused.value)
