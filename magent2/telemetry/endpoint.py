"""`/metrics` of a process that has no gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from magent2.errors import SettingsError
from magent2.settings import HOST, PORT_MAX
from magent2.telemetry.run_metrics import RunMetrics


def parse_address(text: str) -> tuple[str, int]:
    """`9100` → this machine alone; `0.0.0.0:9100` → whoever reaches it."""
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise SettingsError(f"--metrics must be PORT or HOST:PORT, with a port from 0 to {PORT_MAX}, not {text[:40]!r}")
    return host.strip("[]") or HOST, int(port)


@contextmanager
def metrics_endpoint(address: tuple[str, int] | None) -> Iterator[tuple[RunMetrics | None, str]]:
    """Figures, and the address where they are read; neither when nobody wants any."""
    if address is None:
        yield None, ""
        return
    host, port = address
    metrics = RunMetrics()
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; --metrics takes another, 0 any free one"
        ) from error
    try:
        yield metrics, f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
