"""No service, and no reader of a peer's bytes, is left out of the battery."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.battery.child import CHILDREN
from tests.battery.clients import CLIENTS
from tests.battery.services import SERVICES
from tests.unit.project.test_structure import imports, modules, tree_of

LISTENING = {
    "bind", "listen", "serve", "start_server", "create_server", "serve_forever",
    "add_insecure_port", "add_secure_port", "ThreadingHTTPServer", "HTTPServer",
}  # fmt: skip
RECEIVING = {
    "recv", "recv_bytes", "recv_into", "recv_multipart", "recv_streaming", "recv_string",
    "readexactly", "imdecode", "unary_unary", "unary_stream", "stream_unary", "stream_stream",
    "create_connection", "urlopen", "urlretrieve",
}  # fmt: skip
"""Calls (and base classes) by which a module listens, or gets bytes of a peer."""

OWN_CHILD = "the other side is a process that this one started"
NOT_A_SOCKET = "the call is no socket's"
ELSEWHERE = {
    "proctor.benchmarks.mujoco.drawing_process": "a Unix socket in a folder of this user only",
    "proctor_worker.drawing.server": "a Unix socket in a folder of this user only",
    "proctor_worker.__main__": OWN_CHILD,
    "proctor.engine.transport.channel": OWN_CHILD,
    "proctor.engine.processes.warm_workers": OWN_CHILD,
    "proctor.engine.worker.worker": OWN_CHILD,
    "proctor.evaluation.live": OWN_CHILD,
    "proctor.rl.link.pipe_link": OWN_CHILD,
    "proctor.robots.emulation.pty_bus": OWN_CHILD,
    "proctor.commands.evaluation.serve_pages": "starts the server of proctor.report.server.serve",
    "proctor.rl.learner.session": "starts the server of proctor.rl.learner.service",
    "proctor.control.terminal.rerun_display": "sees whether a port is open, reads nothing",
    "proctor.system.ray_cluster": "reads four bytes of a Ray head that the user names",
    "proctor.system.limits": "makes the sockets of proctor.serving",
    "proctor.plugins": NOT_A_SOCKET,
    "proctor.system.user_code": NOT_A_SOCKET,
}
"""Modules with such calls that the battery does not attack, and why."""
COVERED = {module for entry in (*SERVICES.values(), *CLIENTS.values()) for module in entry.modules}


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all calls and base classes."""
    for node in ast.walk(tree):
        used = [node.func] if isinstance(node, ast.Call) else getattr(node, "bases", [])
        for one in used:
            yield one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")


def decoding_modules() -> set[str]:
    """Return the modules of protocols that decode."""
    found = {
        name
        for name, path in modules().items()
        if name.startswith("proctor.protocols.")
        and any(
            isinstance(node, ast.FunctionDef) and node.name.startswith(("decode", "load", "read"))
            for node in tree_of(path).body
        )
    }
    assert len(found) > 8
    return found


@pytest.mark.parametrize("names", [LISTENING, RECEIVING], ids=["listening", "receiving"])
def test_whatever_listens_or_reads_a_peer_is_in_the_table(names: set[str]) -> None:
    found = {
        name
        for name, path in modules().items()
        if not name.startswith("measurements")
        and any(word in path.read_text(encoding="utf-8") for word in names)
        and names & set(names_in(tree_of(path)))
    }
    assert found - COVERED - set(ELSEWHERE) == set(), "add it to tests/battery/services.py"
    assert found, "the search finds nothing"


def test_every_decoder_is_reached_by_a_service_or_client_of_the_table() -> None:
    reached, todo = set(), list(COVERED)
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += [one for one in imports(module) if one.startswith("proctor.protocols")]
    assert decoding_modules() - reached == set()


def test_the_tables_name_modules_that_exist_and_children_that_start() -> None:
    assert (COVERED | set(ELSEWHERE)) - set(modules()) == set()
    assert {service.child for service in SERVICES.values()} == set(CHILDREN)
