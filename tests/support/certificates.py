"""Certificates for tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

OWN_NAMES = "DNS:localhost,IP:127.0.0.1"


def make_certificate(folder: Path, names: str = OWN_NAMES) -> Path:
    """Write a self-signed certificate for these names, and its key; return the certificate."""
    subject = ("-subj", "/CN=localhost", "-addext", f"subjectAltName={names}")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
    return folder / "cert.pem"


def make_certificate_folder(certificate: Path) -> Path:
    """Make a folder that OpenSSL can search: each file is named by the hash of its certificate."""
    folder = certificate.parent / "certificates"
    folder.mkdir()
    name = _openssl("x509", "-noout", "-hash", "-in", str(certificate)).strip()
    shutil.copy(certificate, folder / f"{name}.0")
    return folder


def _openssl(*arguments: str) -> str:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl, which makes the certificate, is not on PATH")
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout
