"""An environment for each contestant in `.cache/peers/`, with the versions of `bench/peers/requirements/`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.contestant import Contestant, Unavailable

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "peers"
REQUIREMENTS = Path(__file__).parent / "requirements"
INSTALL_LIMIT_S = 900.0
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_VERSIONS = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


def ensure(contestant: type[Contestant]) -> Path:
    """The environment of a contestant, created if it is missing or its requirements have changed.

    Raises Unavailable with the last line of the installer.
    """
    if contestant.environment is None:
        return Path(sys.prefix)
    folder = FOLDER / contestant.environment
    python, npm = (REQUIREMENTS / f"{contestant.environment}{end}" for end in (".txt", ".npm.txt"))
    wanted = "".join(file.read_text() for file in (python, npm) if file.exists())
    mark = folder / ".ready"
    if mark.exists() and mark.read_text() == wanted:
        return folder
    print(f"setup: {folder.relative_to(ROOT)}", file=sys.stderr)
    uv = str(ROOT / "scripts" / "uv")
    _install([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
    _install([uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "-r", str(python)])
    if npm.exists():
        packages = npm.read_text().split()
        _install(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), *packages])
    mark.write_text(wanted)
    return folder


def versions(contestant: type[Contestant], environment: Path) -> dict[str, str]:
    command = [str(environment / "bin" / "python"), "-c", _VERSIONS, *contestant.packages]
    told = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=True).stdout
    found: dict[str, str] = json.loads(told)
    npm = REQUIREMENTS / f"{contestant.environment}.npm.txt"
    for package in npm.read_text().split() if npm.exists() else []:
        name, _, version = package.rpartition("@")
        found[name] = version
    return found


def _install(command: Sequence[str]) -> None:
    # npm comes with the project's environment. A proxy may sign with a certificate that only the system's list has.
    variables = {**os.environ, "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    known = next((path for path in CERTIFICATES if Path(path).exists()), None)
    if known is not None:
        variables.setdefault("NODE_EXTRA_CA_CERTS", known)
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"not installed within {INSTALL_LIMIT_S:.0f} s: {' '.join(command[:4])}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Unavailable(f"not installed: {' '.join(lines[-2:])[-300:]}")
