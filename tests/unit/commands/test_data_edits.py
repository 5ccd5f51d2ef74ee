"""``proctor data delete, split, ...`` as a user types them, and as old scripts of LeRobot do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.system import files

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "datasets"
CAMERA = "observation.images.top"


@pytest.fixture
def demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset in LeRobot's home, which is where ids are looked for."""
    monkeypatch.setattr(files, "sync", lambda fd: None)  # nothing here cuts the power
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    return Path(shutil.copytree(GOLDEN / "video3ep", tmp_path / "me" / "demos"))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["data", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_delete_makes_a_new_dataset_and_says_what_is_in_it(
    demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, "delete", str(demos), "--episodes=0,2", f"--output={tmp_path / 'out'}")
    assert out == f"{tmp_path / 'out'}: 1 episode, 7 frames, 1 task\n"
    assert read_info(tmp_path / "out").total_episodes == 1
    assert read_info(demos).total_episodes == 3


def test_an_id_is_a_dataset_of_lerobots_home(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "delete", "me/demos", "--episodes=[1]", "--in_place")
    assert read_info(demos).total_episodes == 2


def test_every_verb_edits(demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = str(demos), tmp_path / "out"
    said(capsys, "split", root, "--splits={train: 0.7, val: 0.3}", f"--output={out / 'split'}")
    said(capsys, "merge", f"{out}/split/train", f"{out}/split/val", f"--output={out / 'merged'}")
    assert read_info(out / "merged").total_frames == 28
    here = [str(out / "merged"), "--in_place"]
    said(capsys, "rename-feature", str(out / "merged"), "action", "action.pose", "--in_place")
    said(capsys, "remove-feature", str(out / "merged"), "note", "next.done", "--in_place")
    said(capsys, "set-task", *here, "--task=wipe", "--episodes=1-2")
    said(capsys, "stats", *here, "--images")
    said(capsys, "reencode", *here, "--codec=h264", "--crf=20", f"--cameras={CAMERA}")
    info = read_info(out / "merged")
    assert {"action.pose"} == info.features.keys() - read_info(demos).features.keys()
    assert not {"note", "next.done"} & info.features.keys()
    assert info.features[CAMERA]["info"]["video.crf"] == 20
    assert read_tasks(out / "merged", info) == ("push the block", "wipe")
    said(
        capsys, "to-video", str(GOLDEN / "image1ep"), f"--new_root={out / 'video'}", "--codec=h264"
    )
    assert read_info(out / "video").video_keys == (CAMERA,)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["delete", "me/demos", "--in_place"], "--episodes"),
        (["delete", "me/demos", "--episodes=0"], "--output=DIR"),
        (["delete", "me/demos", "--episodes=0", "--in_place", "--output=x"], "--in_place"),
        (["delete", "--episodes=0"], "DATASET"),
        (["delete", "me/nothing", "--episodes=0"], "proctor data pull me/nothing"),
        (["delete", "no/such/folder", "--episodes=0"], "no/such/folder"),
        (["delete", "me/demos", "--episodes=x"], "'x'"),
        (["delete", "me/demos", "--episodes=4-2"], "'4-2'"),
        (["delete", "me/demos", "--episodes=,"], "0,3,5-9"),
        (["delete", "me/demos", "--episodes=3", "--in_place"], "episode 3"),
        (["delete", "me/demos", "--episodes=1", "--output=x", "--backup=false"], "--backup"),
        (["delete", "me/demos", "--episode=3"], "did you mean --episodes?"),
        (["delete", "me/demos", "--episodes=1", "--in_plac"], "did you mean --in_place?"),
        (["delete", "me/demos", "--output=a", "--new_root=b"], "--output is given twice"),
        (["split", "me/demos"], "--splits"),
        (["split", "me/demos", "--splits=train"], "--splits: "),
        (["split", "me/demos", "--splits={a: x}"], "'a'"),
        (["split", "me/demos", "--splits={../a: 1}"], "'../a'"),
        (["merge", "me/demos", "me/demos"], "--output"),
        (["merge", "me/demos", "--output=new"], "DATASET DATASET [DATASET ...], got 1"),
        (["rename-feature", "me/demos", "a"], "DATASET OLD NEW, got 2"),
        (["remove-feature", "me/demos"], "DATASET FEATURE"),
        (["set-task", "me/demos"], "--task=TEXT"),
        (["set-task", "me/demos", "--tasks={0: 1}", "--in_place"], "--tasks: 0: 1"),
        (["reencode", "me/demos", "--codec=h265x"], "'h265x'"),
        (["reencode", "me/demos", "--codec=h264", "--crf=x"], "--crf: expected int, got 'x'"),
        (["reencode", "me/demos", "--codec=h264", "--crf=-1"], "--crf must be at least 0"),
        (["reencode", "me/demos", "--cameras=top", "--in_place"], "'top'"),
        (["to-video", "me/demos", "--in_place"], "me/demos"),
        (["convert", "me/demos", "--in_place"], "v3.0"),
        (["stats", "me/demos", "--images=maybe", "--in_place"], "--images"),
    ],
)
def test_bad_input_gets_one_line_and_changes_nothing(
    demos: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(demos.parent.parent.rglob("*"))
    err = said(capsys, *words, code=2)
    assert why in err
    assert err.count("\n") == 1
    assert sorted(demos.parent.parent.rglob("*")) == before


def test_old_scripts_delete_in_place_and_keep_the_old_one(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--repo-id", "me/demos", "--operation.type", "delete_episodes"]
    said(capsys, "edit", *words, "--operation.episode_indices", "[0, 2]")
    assert read_info(demos).total_episodes == 1
    assert read_info(demos.with_name("demos_old")).total_episodes == 3


def test_the_second_edit_of_an_old_script_keeps_the_original(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["edit", "--repo_id=me/demos", "--operation.type=delete_episodes"]
    said(capsys, *words, "--operation.episode_indices=[0]")
    out = said(capsys, *words, "--operation.episode_indices=[0]")
    assert f"backup: {demos.with_name('demos_old_2')} " in out
    assert read_info(demos.with_name("demos_old")).total_episodes == 3
    assert read_info(demos.with_name("demos_old_2")).total_episodes == 2


@pytest.mark.parametrize(
    "words",
    [
        ["delete", "me/demos", "--episodes=0", "--in_place"],
        ["set-task", "me/demos", "--task=wipe", "--in_place"],
        ["rename-feature", "me/demos", "action", "action.pose", "--in_place"],
        ["remove-feature", "me/demos", "note", "--in_place"],
        ["reencode", "me/demos", "--codec=h264", "--in_place"],
        ["stats", "me/demos", "--in_place"],
        ["edit", "--repo_id=me/demos", "--operation.type=modify_tasks", "--operation.new_task=x"],
        ["edit", "--repo_id=me/demos", "--operation.type=recompute_stats"],
    ],
)
def test_every_edit_in_place_keeps_a_backup_and_says_where(
    demos: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in (demos / "meta").iterdir() if path.is_file()}
    backup = demos.with_name("demos_old")
    assert f"backup: {backup} (the dataset before this edit)" in said(capsys, *words)
    kept = {path.name: path.read_bytes() for path in (backup / "meta").iterdir() if path.is_file()}
    assert kept == before


def test_without_a_backup_the_replaced_dataset_is_removed_and_that_is_said(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["delete", "me/demos", "--episodes=0", "--in_place", "--backup=false"]
    assert "no backup" in said(capsys, *words)
    assert [path.name for path in demos.parent.iterdir()] == ["demos"]


def test_old_scripts_do_everything_else(
    demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def old(kind: str, *words: str) -> None:
        said(capsys, "edit", f"--operation.type={kind}", *words)

    source = ["--repo_id=me/demos", f"--root={demos}"]
    old("info", *source, "--operation.show_features=true")
    old("split", *source, '--operation.splits={"train": 0.7, "val": 0.3}')
    assert read_info(tmp_path / "me/demos_train").total_episodes == 2
    both = "--operation.repo_ids=['me/demos_train', 'me/demos_val']"
    old("merge", both, "--new_repo_id=me/all")
    assert read_info(tmp_path / "me/all").total_frames == 28
    names = f"--operation.feature_names=['{CAMERA}']"
    old("remove_feature", *source, names, "--new_repo_id=me/blind")
    assert read_info(tmp_path / "me/blind").video_keys == ()
    old("modify_tasks", "--repo_id=me/blind", "--operation.new_task=wipe",
        '--operation.episode_tasks={"1": "lift"}')  # fmt: skip
    assert read_tasks(tmp_path / "me/blind", read_info(tmp_path / "me/blind")) == ("wipe", "lift")
    old("modify_tasks", "--repo_id=me/blind", '--operation.task_replacements={"wipe": "dry"}')
    found = read_tasks(tmp_path / "me/blind", read_info(tmp_path / "me/blind"))
    assert sorted(found) == ["dry", "lift"]
    old("modify_tasks", "--repo_id=me/blind", '--operation.task_replacements={"lift": "hold"}',
        "--operation.new_task=sweep", '--operation.episode_tasks={"2": "rest"}')  # fmt: skip
    found = read_tasks(tmp_path / "me/blind", read_info(tmp_path / "me/blind"))
    assert sorted(found) == ["hold", "rest", "sweep"]
    old("recompute_stats", "--repo_id=me/blind", "--operation.num_workers=4")
    pictures = f"--root={GOLDEN / 'image1ep'}"
    old("convert_image_to_video", "--repo_id=x", pictures, f"--new_root={tmp_path / 'video'}",
        "--operation.vcodec=h264", "--operation.episode_indices=[0]")  # fmt: skip
    assert read_info(tmp_path / "video").features[CAMERA]["info"]["video.codec"] == "h264"
    old("reencode_videos", *source, "--operation.rgb_encoder.vcodec=h264",
        "--operation.rgb_encoder.crf=23")  # fmt: skip
    assert read_info(tmp_path / "me/demos_reencoded").total_episodes == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "--operation.type=TYPE"),
        (["--operation.type=delete_episode"], "did you mean 'delete_episodes'?"),
        (["--operation.type=delete_episodes"], "--operation.episode_indices"),
        (["--operation.type=info"], "--repo_id=ID"),
        (["--operation.type=merge"], "--operation.repo_ids"),
        (["--operation.type=split", "--operation.split=3"], "did you mean --operation.splits?"),
        (["x"], "'x'"),
        (["--operation.type=recompute_stats", "--operation.relative_action=true"], "relative"),
        (["--operation.type=reencode_videos", "--operation.depth_encoder.crf=50"], "depth"),
        (["--config_path=nowhere.json"], "nowhere.json"),
    ],
)
def test_old_scripts_with_mistakes_get_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err = said(capsys, "edit", *words, code=2)
    assert why in err
    assert err.count("\n") == 1


def test_an_instruction_that_no_episode_has_is_not_replaced(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--operation.type=modify_tasks", f"--root={demos}", "--repo_id=me/demos"]
    err = said(capsys, "edit", *words, '--operation.task_replacements={"fly": "land"}', code=2)
    assert "'fly'" in err
