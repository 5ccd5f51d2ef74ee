"""TLS: the same episodes, only for clients that trust the certificate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import PolicyError, UsageError
from tests.certificates import write_certificate
from tests.conftest import digests
from tests.refusals import refuses
from tests.unit.protocols.serving import served

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path)


def encrypted(certificate: tuple[Path, Path], protocol: str) -> Any:
    cert, key = certificate
    return served(tls_cert=str(cert), tls_key=str(key), protocol=[protocol])


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [("openpi", "wss://"), ("vla-eval", "vlas://"), ("lerobot", "grpcs://")],
)
def test_episodes_are_the_same_bits_behind_tls(run, certificate, monkeypatch, protocol, scheme):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    plain = {"eval__use_async_envs": False}
    with encrypted(certificate, protocol) as (url, _):
        assert url.startswith(scheme)
        found = run(policy__type="remote", policy__url=url, **plain)
    assert digests(found) == digests(run(policy__n_action_steps=4, **plain))


def test_a_certificate_that_nobody_vouches_for_is_refused_in_one_line(run, certificate):
    with (
        encrypted(certificate, "openpi") as (url, _),
        pytest.raises((PolicyError, UsageError)) as refused,
    ):
        run(policy__type="remote", policy__url=url, policy__retry_s=0.1)
    assert "certificate verify failed" in str(refused.value)  # in the words of OpenSSL
    assert "\n" not in str(refused.value)


def test_files_that_are_no_certificate_are_named(tmp_path):
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("nothing")
    with (
        refuses(UsageError, "serve.invalid-certificate") as refused,
        encrypted((tmp_path / "cert.pem", tmp_path / "key.pem"), "openpi"),
    ):
        pass
    assert "cert.pem" in str(refused.value)
    assert "key.pem" in str(refused.value)
