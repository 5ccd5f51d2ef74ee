"""Fuzzing of datasets: hostile info.json, tables and videos, read and edited."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from proctor.datasets.reader import open as open_dataset
from proctor.errors import ProctorError
from tests.fuzz.hostile import NUMBERS, Draw, json_bytes, numbers, spoiled, texts
from tests.fuzz.runs import Files
from tests.fuzz.sandbox import Sandbox

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "datasets"
TEMPLATES = [
    "../outside/{chunk_index}-{file_index}.parquet", "/etc/{chunk_index}-{file_index}",
    "{video_key}/../../../outside/{file_index}.mp4", "data/{file_index:999999999d}.parquet",
    "{chunk_index.__class__.__mro__}-{file_index}", "{file_index!r:>99999999}", "{0}", "{", "}{",
    "{file_index:{chunk_index}}", "data/x.parquet", "", "a\0{file_index}", "{file_index}" * 400,
    "~/{file_index}", "data/./../../outside/{file_index}", "C:\\{file_index}",
    "file:///etc/passwd{file_index}", "hf://x/{file_index}", "{__import__}{file_index}",
    "data/{file_index}\n{chunk_index}", "{chunk_index:d}/{file_index:s}", "{file_index:_}",
    "videos/{video_key:.1}/{file_index}.mp4", "concat:{video_key}|{file_index}",
]  # fmt: skip
_KEYS = ["../x", "..", "/x", "a/b", "", "x" * 5000, "a\0b", "a\nb", ".", "index", "task", "é"]
_SHAPES = [[], [0], [-1], [2**31], [2**20, 2**20, 3], [1] * 40, [1.5], ["3"], [None], [[3]], 3]
_DTYPES = [
    "object", "O", "float128", "datetime64", "U9999999", "S", "void", "f4,f4", "complex64",
    "int128", "video", "image", "string", "language", "bool", "uint64", "float16", "", None, 7,
]  # fmt: skip


def good_datasets() -> list[Files]:
    """Return the files of a dataset with a video, and of one with images in its table."""
    return [_files(GOLDEN / name) for name in ("video3ep", "image1ep")]


def _files(root: Path) -> Files:
    found = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def _written(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder


def _some(draw: Draw, sandbox: Sandbox, ending: str) -> tuple[Files, str]:
    """Return the files of a valid dataset and the name of one of them."""
    named = [files for files in sandbox.datasets if any(name.endswith(ending) for name in files)]
    files = dict(draw(st.sampled_from(named)))
    return files, draw(st.sampled_from(sorted(name for name in files if name.endswith(ending))))


def infos(draw: Draw, sandbox: Sandbox) -> None:
    """A dataset with a false info.json: templates, sizes, types, names, counts."""
    files, name = _some(draw, sandbox, draw(st.sampled_from(["info.json"] * 4 + ["stats.json"])))
    tree = json.loads(files[name])
    how = draw(st.sampled_from(["any", "any", "template", "feature", "feature", "count"]))
    if name.endswith("stats.json") or how == "any":
        files[name] = draw(json_bytes(tree))
    else:
        _lie(draw, tree, how)
        files[name] = json.dumps(tree).encode()
    _ask(draw, sandbox, files)


def _lie(draw: Draw, tree: dict[str, Any], how: str) -> None:
    if how == "template":
        tree[draw(st.sampled_from(["data_path", "video_path"]))] = draw(st.sampled_from(TEMPLATES))
    elif how == "count":
        counts = [key for key, value in tree.items() if isinstance(value, int)]
        tree[draw(st.sampled_from(counts))] = draw(numbers)
    else:
        key = draw(st.sampled_from(sorted(tree["features"])))
        entry = tree["features"][key]
        entry.update(
            draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "shape": st.one_of(st.sampled_from(_SHAPES), st.lists(numbers, max_size=4)),
                        "dtype": st.sampled_from(_DTYPES),
                        "names": st.sampled_from([None, [], ["a"], {"m": 3}, {"m": [1]}, "x"]),
                    },
                )
            )
        )
        if not draw(st.integers(0, 3)):
            tree["features"][draw(st.one_of(st.sampled_from(_KEYS), texts))] = entry


def tables(draw: Draw, sandbox: Sandbox) -> None:
    """A dataset with a truncated, changed or inconsistent Parquet file."""
    files, name = _some(draw, sandbox, ".parquet")
    if draw(st.integers(0, 2)):
        files[name] = _hostile_table(draw, files[name])
    else:
        files[name] = draw(spoiled(files[name]))
    _ask(draw, sandbox, files)


_TYPES = [pa.string(), pa.float64(), pa.float16(), pa.int8(), pa.bool_(), pa.binary(), pa.null(),
          pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.timestamp("ns")]  # fmt: skip


def _hostile_table(draw: Draw, blob: bytes) -> bytes:
    table = pq.read_table(io.BytesIO(blob))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, table.num_columns - 1)) if table.num_columns else 0
        how = draw(st.sampled_from(["value", "value", "type", "drop", "nulls", "rows", "name"]))
        if how == "rows" or not table.num_columns:
            table = pa.concat_tables([table] * draw(st.sampled_from([0, 2, 50])) or [table[:0]])
        else:
            table = _changed_column(draw, table, at, how)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _changed_column(draw: Draw, table: pa.Table, at: int, how: str) -> pa.Table:
    name, column = table.column_names[at], table.column(at)
    if how == "drop":
        return table.remove_column(at)
    if how == "name":
        return table.set_column(at, draw(st.sampled_from(["x", "", "index", "a/b"])), column)
    if how == "nulls" or not len(table):
        return table.set_column(at, name, pa.nulls(len(table), column.type))
    if how == "type":
        kind = draw(st.sampled_from(_TYPES))
        return table.set_column(at, name, pa.nulls(len(table), kind))
    values = column.to_pylist()
    values[draw(st.integers(0, len(values) - 1))] = draw(_like(column.type))
    try:
        return table.set_column(at, name, pa.array(values, column.type))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return table.remove_column(at)


def _like(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return odd values of a column's type."""
    if pa.types.is_integer(kind):
        return st.sampled_from([n for n in NUMBERS if isinstance(n, int) and abs(n) < 2**63])
    if pa.types.is_floating(kind):
        return st.sampled_from([float(n) for n in NUMBERS if abs(n) < 1e300])
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return st.lists(_like(kind.value_type), max_size=4)
    if pa.types.is_struct(kind):
        blobs = [b"", b"x", b"\x89PNG\r\n\x1a\n" + b"\xff" * 40, None]
        return st.fixed_dictionaries(
            {"bytes": st.sampled_from(blobs), "path": st.sampled_from(["/etc/passwd", "", None])}
        )
    return st.one_of(st.none(), texts.map(lambda text: text.encode("utf-8", "replace").decode()))


_BOXES = [b"mvhd", b"tkhd", b"mdhd", b"elst", b"stsd", b"av01", b"av1C", b"stts", b"ctts", b"stss",
          b"stsc", b"stsz", b"stco", b"mdat", b"moov", b"ftyp", b"hdlr"]  # fmt: skip


def videos(draw: Draw, sandbox: Sandbox) -> None:
    """A dataset with a truncated or changed video, or with false MP4 boxes."""
    files, name = _some(draw, sandbox, ".mp4")
    blob = files[name]
    how = draw(st.sampled_from(["boxes", "boxes", "spoil", "playlist", "link"]))
    if how == "spoil":
        files[name] = draw(spoiled(blob))
    elif how == "playlist":
        files[name] = draw(st.sampled_from(_PLAYLISTS(sandbox)))
    else:
        for _ in range(draw(st.integers(1, 3))):
            blob = _lying_box(draw, blob)
        files[name] = blob
    _ask(draw, sandbox, files, linked=name if how == "link" else None)


def _lying_box(draw: Draw, blob: bytes) -> bytes:
    """Insert an odd number into or before one of the boxes."""
    place = blob.find(draw(st.sampled_from(_BOXES)))
    at = max(0, place - 4) + 2 * draw(st.integers(0, 50))
    number = draw(st.sampled_from([0, 1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]))
    width = draw(st.sampled_from([1, 2, 4, 8]))
    some = (number % 2 ** (8 * width)).to_bytes(width, "big")
    return blob[:at] + some + blob[at + width :]


def _PLAYLISTS(sandbox: Sandbox) -> list[bytes]:  # noqa: N802  as long as a constant would be
    """Return files that could make FFmpeg open other files."""
    secret = sandbox.outside / "secret.mp4"
    return [
        f"#EXTM3U\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n".encode(),
        f"ffconcat version 1.0\nfile '{secret}'\n".encode(),
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n",
        b"RIFF\xff\xff\xff\x7fAVI LIST", b"\x1aE\xdf\xa3" * 9, b"<MPD></MPD>", b"v=0\nm=video 1\n",
    ]  # fmt: skip


def _ask(draw: Draw, sandbox: Sandbox, files: Files, linked: str | None = None) -> None:
    root = _written(sandbox.inputs / "dataset", files)
    if linked:
        target = draw(st.sampled_from(["/dev/zero", "fifo", "folder", "self", "secret"]))
        _replace(root / linked, target, sandbox)
    verb = draw(st.sampled_from(["read", "read", *_VERBS]))
    if verb == "read":
        read(draw, sandbox, root)
    else:
        words = [word.format(root=root, out=sandbox.out / "result") for word in _VERBS[verb]]
        sandbox.run_command(["data", verb, *words], codes=(0, 1, 2) if verb == "check" else (0, 2))


_VERBS = {
    "info": ["{root}"],
    "check": ["{root}"],
    "view": ["{root}", "--html={out}.html"],
    "delete": ["{root}", "--episodes=0", "--output={out}"],
    "split": ["{root}", "--splits={{a: 0.5, b: 0.5}}", "--output={out}"],
    "merge": ["{root}", "{root}", "--output={out}"],
    "rename-feature": ["{root}", "action", "act", "--output={out}"],
    "remove-feature": ["{root}", "next.reward", "--in_place"],
    "set-task": ["{root}", "--task=x", "--in_place"],
    "stats": ["{root}", "--images", "--in_place"],
    "convert": ["{root}", "--output={out}"],
}
"""Commands on a dataset, which may be refused but must not crash."""


def _replace(place: Path, target: str, sandbox: Sandbox) -> None:
    place.unlink()
    if target == "fifo":
        os.mkfifo(place)
    elif target == "folder":
        place.mkdir()
    elif target == "self":
        place.symlink_to(place.name)
    else:
        place.symlink_to(sandbox.outside / "secret.mp4" if target == "secret" else target)


def read(draw: Draw, sandbox: Sandbox, root: Path) -> None:
    """Open the dataset from Python and read some items, with and without delta timestamps."""
    deltas = draw(st.sampled_from([None, {"action": [0.0, 0.1]}, {"observation.state": [-0.1]}]))
    with sandbox.watched(f"reading {root}"):
        try:
            dataset = open_dataset(root, delta_timestamps=deltas)
            if len(dataset):
                dataset.batch([0, len(dataset) - 1, len(dataset) // 2])
        except ProctorError as error:
            sandbox.check_error(error)
