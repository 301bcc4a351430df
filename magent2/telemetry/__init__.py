"""Logs, metrics and traces. Ids go into logs and traces, never into labels; what people say goes into none of them."""

from magent2.telemetry.logs import setup_logging
from magent2.telemetry.metrics import METRICS_MEDIA_TYPE, Metrics

__all__ = ["METRICS_MEDIA_TYPE", "Metrics", "setup_logging"]
