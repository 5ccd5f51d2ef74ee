"""Inputs that fuzzing has found, and the list of decoders that it covers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.battery.test_complete import decoding_modules
from tests.fuzz.decoders import DECODERS
from tests.unit.project.test_structure import imports, modules

HERE = Path(__file__).parent
FOUND = sorted(path for path in HERE.glob("found/*/*") if path.is_file())


@pytest.mark.parametrize("name", list(DECODERS))
def test_valid_and_found_inputs_raise_errors_of_ours_only(name: str) -> None:
    found = [path.read_bytes() for path in FOUND if path.parent.name == name]
    samples = DECODERS[name].samples()
    assert samples
    for data in [b"", *samples, *found]:
        DECODERS[name].decode(data)


def test_every_found_input_belongs_to_a_decoder() -> None:
    assert {path.parent.name for path in FOUND} <= set(DECODERS)


def test_every_decoder_of_a_protocol_is_fuzzed() -> None:
    todo = []
    for file in ("decoders.py", "frames.py", "online_frames.py"):
        for node in ast.walk(ast.parse((HERE / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                todo += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    reached: set[str] = set()
    while todo:
        module = todo.pop()
        if module in modules() and module not in reached:
            reached.add(module)
            todo += [one for one in imports(module) if one.startswith("proctor.protocols")]
    assert decoding_modules() - reached == set()
