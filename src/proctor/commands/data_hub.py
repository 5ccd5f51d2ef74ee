"""``proctor data push`` and ``proctor data pull``: datasets to the Hub and from it."""

from __future__ import annotations

from proctor.commands.data_arguments import ParsedArgs, parse_args
from proctor.errors import UsageError, strip_control_codes

_PUSH = """\
proctor data push DATASET ID [--private] [--videos=false]

Uploads a dataset to the Hugging Face Hub as ID (me/dataset), with a card if it has none, and moves
the tag of its version to the new commit, which is what LeRobot downloads. Files of the dataset that
are no longer part of it are removed there.

  --private
      who may see it, where it is new
  --videos=false
      leave out the videos; those of an earlier upload are removed, as they may no longer fit
"""
_PULL = """\
proctor data pull ID [--root=DIR] [--revision=TEXT] [--videos=false]

Downloads a dataset from the Hugging Face Hub. What an interruption left is used the next time.

  --root=DIR
      its folder, which must not exist (default: $HF_LEROBOT_HOME/ID, where LeRobot looks for it)
  --revision=text
      a branch, tag or commit (default: v3.0, else the newest older version that can be read)
  --videos=false
      leave out the videos
"""


def push(words: list[str]) -> int:
    """Run ``proctor data push`` and return its exit code."""
    given = parse_args("push", _PUSH, words, ("videos",), switches=("private",))
    if given is None:
        return 0
    if len(given.positional) != 2:
        raise UsageError(
            "push takes a dataset and its id on the Hub: proctor data push DIR me/data"
        )
    from proctor.datasets.hub import push as upload

    root = ParsedArgs("push", given.positional[:1], {}).dataset()
    private = given.switch("private") if "private" in given.flags else None
    address = upload(root, given.positional[1], private=private, videos=_videos(given))
    print(strip_control_codes(address))
    return 0


def pull(words: list[str]) -> int:
    """Run ``proctor data pull`` and return its exit code."""
    given = parse_args("pull", _PULL, words, ("root", "revision", "videos"))
    if given is None:
        return 0
    if len(given.positional) != 1:
        raise UsageError("pull takes the id of a dataset on the Hub: proctor data pull me/dataset")
    from proctor.config.flags import path_of
    from proctor.datasets.hub import pull as download
    from proctor.datasets.source import lerobot_home

    repo = given.positional[0]
    root = path_of(given.flags["root"]) if "root" in given.flags else lerobot_home() / repo
    revision = given.flags.get("revision")
    info = download(repo, root, revision=revision, videos=_videos(given))
    print(strip_control_codes(f"{root}: {info.version}, {info.total_episodes:,} episodes"))
    return 0


def _videos(given: ParsedArgs) -> bool:
    return "videos" not in given.flags or given.switch("videos")
