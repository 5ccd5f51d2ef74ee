"""Files of Hub repositories: listed, downloaded, and compared with the listing before use.

A file gets its name after its bytes had the digest of the listing: the SHA-256 of a large file,
git's blob id of another. Downloads go into Hugging Face's cache, which other programs share, or
into a folder. Files that are there already are compared too, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from proctor.errors import UsageError
from proctor.system.caches import JsonCache, content_digest, wrong_files
from proctor.system.files import UNFINISHED, atomic_write, publish, read_regular_file
from proctor.system.hub.client import HubClient, bad_answer, http_errors, hub_utils, server_name
from proctor.system.links import refuse_links

_MAX_FILES = 300_000
_MAX_NAME, _MAX_PATH = 255, 1024
_THREADS, _ATTEMPTS = 8, 5
_GIT, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
_NOTES = ".cache/huggingface"
"""Folder inside a download in which Hugging Face's library and Proctor note what it is."""
_SOURCE = f"{_NOTES}/source.json"


@dataclass(frozen=True)
class HubFile:
    """A file in a listing."""

    path: str
    size: int
    digest: str
    """SHA-256, or git's blob id."""


@dataclass(frozen=True)
class HubRepo:
    """A repository at one commit."""

    repo: str
    kind: str
    commit: str

    @property
    def folder_name(self) -> str:
        """Name of its folder in Hugging Face's cache."""
        return f"{self.kind}s--{self.repo.replace('/', '--')}"

    def address(self, path: str) -> str:
        """Return the address of a file, without the Hub's."""
        kind = "" if self.kind == "model" else f"/{self.kind}s"
        return f"{kind}/{self.repo}/resolve/{self.commit}/{quote(path)}"

    def listing(self, client: HubClient | None) -> dict[str, HubFile] | None:
        """Return the files by their paths; without a client, None if they were never listed."""
        cache = JsonCache(f"hub/{server_name()}/{self.folder_name}/{self.commit}", _MAX_FILES)
        if entries := cache.read():
            return {path: HubFile(path, *entry) for path, entry in entries.items()}
        if client is None:
            return None
        files: dict[str, HubFile] = {}
        tree = f"/api/{self.kind}s/{self.repo}/tree/{self.commit}?recursive=true"
        for page in client.pages(tree):
            for entry in _checked(page, list, "a listing"):
                file = _listed_file(entry)
                if file is not None and files.setdefault(file.path, file) != file:
                    raise bad_answer(f"{file.path!r} is listed twice")
            if len(files) > _MAX_FILES:
                raise bad_answer(f"a listing of more than {_MAX_FILES} files")
        cache.write({path: [file.size, file.digest] for path, file in files.items()})
        return files


def resolve(client: HubClient, repo: str, kind: str, revision: str | None) -> HubRepo:
    """Return the repository at the commit of ``revision``."""
    hub_utils().validate_repo_id(repo)
    if revision is not None and _GIT.fullmatch(revision):
        return HubRepo(repo, kind, revision)
    wanted = quote(revision or "main", safe="")
    info = _checked(client.json(f"/api/{kind}s/{repo}/revision/{wanted}?expand=sha"), dict, "info")
    return HubRepo(repo, kind, _digits(info.get("sha"), _GIT, "commit"))


def ref_names(client: HubClient, repo: str, kind: str) -> list[str]:
    """Return the names of the branches and tags."""
    refs = _checked(client.json(f"/api/{kind}s/{repo}/refs"), dict, "branches and tags")
    found = [ref for key in ("branches", "tags") for ref in _checked(refs.get(key), list, key)]
    return [_checked(_checked(ref, dict, "a branch").get("name"), str, "a name") for ref in found]


def _listed_file(entry: object) -> HubFile | None:
    """Return the file of an entry of a listing; None for a folder."""
    said = _checked(entry, dict, "an entry of a listing")
    if said.get("type") != "file":
        return None
    path = _checked(said.get("path"), str, "a path")
    if not _is_plain(path):
        raise bad_answer(f"a file is called {path[:100]!r}")
    large = said.get("lfs")
    if large is None:
        return HubFile(path, _size(said), _digits(said.get("oid"), _GIT, "blob id"))
    large = _checked(large, dict, "a large file")
    return HubFile(path, _size(large), _digits(large.get("oid"), _SHA256, "SHA-256"))


def _checked(value: object, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise bad_answer(f"{what} is {str(value)[:100]!r}")
    return value


def _digits(value: object, form: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise bad_answer(f"{str(value)[:100]!r} is no {what}")
    return value


def _size(said: Mapping[str, object]) -> int:
    size = said.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise bad_answer(f"{str(size)[:100]!r} is no size")
    return size


def _is_plain(path: str) -> bool:
    """Return whether a path can be stored below any folder."""
    try:
        parts = path.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    return (
        len(path) <= _MAX_PATH
        and "\0" not in path
        and "\\" not in path
        and all(part not in (b"", b".", b"..") and len(part) <= _MAX_NAME for part in parts)
    )


def fetch_to_cache(
    client: HubClient, source: HubRepo, files: Iterable[HubFile], cache: Path
) -> Path:
    """Put files into a cache in Hugging Face's layout; return the folder of the commit."""
    storage = cache / source.folder_name
    snapshot = storage / "snapshots" / source.commit
    wanted = {snapshot / file.path: file for file in files}
    wrong = wrong_files({path: file.digest for path, file in wanted.items()})
    blobs = {storage / "blobs" / wanted[path].digest: wanted[path] for path in wrong}
    _fetch_missing(client, source, blobs)
    with _disk_errors(storage):
        snapshot.mkdir(parents=True, exist_ok=True)
        for path in wrong:
            _link(storage / "blobs" / wanted[path].digest, path)
    return snapshot


def fetch_to_folder(
    client: HubClient, source: HubRepo, files: Iterable[HubFile], folder: Path, *, notes: bool
) -> None:
    """Put files into a folder; ``notes``: with what Hugging Face's library notes of them."""
    said = json.dumps({"repo": source.repo, "kind": source.kind, "commit": source.commit})
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        if notes:
            check_source(folder, source)
            atomic_write(folder / _SOURCE, said.encode())
    wanted = {folder / file.path: file for file in files}
    _fetch_missing(client, source, wanted)
    if notes:
        with _disk_errors(folder):
            for file in wanted.values():
                note = folder / _NOTES / "download" / f"{file.path}.metadata"
                if not note.is_file():
                    note.parent.mkdir(parents=True, exist_ok=True)
                    note.write_text(f"{source.commit}\n{file.digest}\n{time.time()}\n")


def check_source(folder: Path, source: HubRepo) -> None:
    """Refuse a folder that holds files of another repository or commit."""
    try:
        said = json.loads(read_regular_file(folder / _SOURCE, 2**16))
        kept = HubRepo(said["repo"], said["kind"], said["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if kept != source:
        raise UsageError(
            f"{folder} holds files of {kept.repo} at {kept.commit}, not of {source.repo} at "
            f"{source.commit}; choose another folder, or remove it",
            code="hub.other-download",
        )


def _fetch_missing(client: HubClient, source: HubRepo, wanted: Mapping[Path, HubFile]) -> None:
    """Download those files that are missing or have other bytes, each whole or not at all."""
    missing = wrong_files({path: file.digest for path, file in wanted.items()})
    if not missing:
        return
    with _progress(source.repo, sum(wanted[path].size for path in missing)) as report:
        pool = ThreadPoolExecutor(_THREADS)
        try:
            jobs = [
                pool.submit(_fetch, client, source, wanted[path], path, report) for path in missing
            ]
            for job in jobs:
                job.result()
        except BaseException:
            client.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _fetch(
    client: HubClient, source: HubRepo, file: HubFile, path: Path, report: Callable[[int], None]
) -> None:
    """Download one file and compare it, then give it its name."""
    part = path.with_name(f".{path.name[:100]}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}")
    try:
        with _disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            sink = part.open("xb")
        with sink:
            digest, done = content_digest(file.digest, file.size), 0
            for attempt in range(_ATTEMPTS):
                try:
                    with client.body(source.address(file.path), file.size, done) as (start, pieces):
                        if start != done:
                            report(-done)
                            sink.seek(0)
                            sink.truncate()
                            digest, done = content_digest(file.digest, file.size), 0
                        for piece in pieces:
                            with _disk_errors(path.parent):
                                sink.write(piece)
                            digest.update(piece)
                            done += len(piece)
                            report(len(piece))
                    break
                except http_errors() as error:
                    if hasattr(error, "response") or attempt == _ATTEMPTS - 1:
                        raise  # the Hub refused, or the network breaks too often
        if done != file.size or digest.hexdigest() != file.digest:
            raise UsageError(
                f"{source.repo}: {file.path} has other bytes than the Hub's listing states "
                f"({done} of {file.size} bytes, digest {digest.hexdigest()[:12]}, not "
                f"{file.digest[:12]}); run the command again, or report it to the Hub",
                code="hub.wrong-bytes",
            )
        with _disk_errors(path.parent):
            publish(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _link(blob: Path, path: Path) -> None:
    """Let ``path`` be a link to ``blob``, or a copy where there are no links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name[:100]}.{os.getpid()}{UNFINISHED}")
    try:
        part.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        shutil.copyfile(blob, part)
    part.replace(path)


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar, unless HF_HUB_DISABLE_PROGRESS_BARS is set; yield what counts bytes."""
    lock = threading.Lock()
    with hub_utils().tqdm(total=total, unit="B", unit_scale=True, desc=name) as bar:

        def report(count: int) -> None:
            with lock:
                bar.update(count)

        yield report


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError of the disk into one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write the download in {folder}: {error.strerror or error}",
            code="disk.not-writable",
        ) from None


def kept_snapshot(cache: Path, repo: str, kind: str, revision: str | None) -> HubRepo | None:
    """Return an earlier download in a cache in Hugging Face's layout, or None."""
    named = HubRepo(repo, kind, revision or "main")
    commit = named.commit
    if not _GIT.fullmatch(commit):
        if not _is_plain(commit):
            return None
        try:
            ref = cache / named.folder_name / "refs" / commit
            commit = read_regular_file(ref, 1000).decode().strip()
        except (OSError, ValueError):
            return None
    is_there = (cache / named.folder_name / "snapshots" / commit).is_dir()
    is_commit = _GIT.fullmatch(commit) is not None
    return HubRepo(repo, kind, commit) if is_commit and is_there else None


def note_ref(cache: Path, source: HubRepo, revision: str | None) -> None:
    """Note the commit of a branch or tag in a cache, for use without a network."""
    name = revision or "main"
    if name == source.commit or not _is_plain(name):
        return
    ref = cache / source.folder_name / "refs" / name
    with contextlib.suppress(OSError):  # a cache that is not ours to write
        if not ref.is_file() or ref.read_text() != source.commit:
            atomic_write(ref, source.commit.encode())


def own_digests(snapshot: Path, paths: Iterable[str]) -> dict[Path, str]:
    """Return the digests by which a cache itself names the blobs of files."""
    found = {}
    for path in paths:
        blob = Path(os.path.realpath(snapshot / path)).name
        if _GIT.fullmatch(blob) or _SHA256.fullmatch(blob):
            found[snapshot / path] = blob
    return found
