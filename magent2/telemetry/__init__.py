"""Logs, metrics and traces. Ids appear in logs and traces but not in metric labels; message text appears in neither
unless the settings allow it in traces."""

from magent2.telemetry.logs import setup_logging
from magent2.telemetry.metrics import METRICS_MEDIA_TYPE, Metrics

__all__ = ["METRICS_MEDIA_TYPE", "Metrics", "setup_logging"]
