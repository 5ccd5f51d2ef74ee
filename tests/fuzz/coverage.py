"""Fuzzing of decoders guided by coverage: python -m tests.fuzz.coverage [--seconds=120]

libFuzzer (atheris) changes valid frames and keeps what reaches new branches of our code. An input
that raises a foreign error, takes 5 s or 2 GiB stays in found/DECODER beside this file, where
test_decoders.py decodes it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOUND = Path(__file__).parent / "found"
_INSTRUMENTED = ["proctor.protocols", "proctor.rl", "proctor.runs", "proctor.serving"]
_LIMITS = ("-timeout=5", "-rss_limit_mb=2048", "-max_len=65536")


def fuzz(name: str, words: list[str]) -> None:
    """Fuzz one decoder in this process, which ends with it."""
    import atheris  # type: ignore[import-not-found]  # not for every platform

    with atheris.instrument_imports(include=_INSTRUMENTED):
        from tests.fuzz.decoders import DECODERS
    decoder, folder = DECODERS[name], Path(words[0])
    for sample in decoder.samples():
        (folder / hashlib.sha256(sample).hexdigest()[:16]).write_bytes(sample)

    def decode(data: bytes) -> None:
        decoder.decode(data)

    atheris.Setup([sys.argv[0], *words], decode)
    atheris.Fuzz()


def main() -> int:
    """Fuzz decoders one after the other; return 1 if an input was found."""
    from tests.fuzz.decoders import DECODERS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage")
    parser.add_argument("--seconds", type=int, default=120, help="for all decoders together")
    parser.add_argument("--only", choices=[*DECODERS], action="append", help="a decoder")
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed; it exists for Linux on x86-64", file=sys.stderr)
        return 2
    names, failed = given.only or [*DECODERS], False
    for name in names:
        (FOUND / name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as corpus:
            words = [
                corpus, f"-max_total_time={max(1, given.seconds // len(names))}", *_LIMITS,
                f"-artifact_prefix={FOUND / name}/", "-print_final_stats=1",
            ]  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.coverage", "--one", name, *words],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                check=False,
            )  # fmt: skip
            kept = len([*Path(corpus).iterdir()])
        runs = re.search(r"stat::number_of_executed_units: *(\d+)|Done (\d+) ", done.stdout)
        n = 0 if runs is None else int(runs[1] or runs[2])
        print(f"{name}: {n:,} inputs, {kept} of them reach something new", flush=True)
        if done.returncode:
            failed = True
            print(done.stdout[-4000:], flush=True)
        if not [*(FOUND / name).iterdir()]:
            (FOUND / name).rmdir()
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
