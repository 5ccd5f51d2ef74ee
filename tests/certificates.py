"""Self-signed certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its private key; return the files."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    named = ["-nodes", "-days", "1", "-subj", "/CN=localhost"]
    named += ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*made, *named, *files], check=True, capture_output=True)
    return cert, key
