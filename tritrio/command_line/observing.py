"""The options about what the server tells: metrics, log, traces."""

from __future__ import annotations

from typing import Final

from ..protocol.log_settings import LOG_FORMATS
from . import kinds
from .option import Group, Option

METRICS: Final = Group(
    "metrics",
    (
        Option("--allow-metrics", kinds.BOOL, "true", "serve Prometheus text"),
        Option(
            "--metrics-address",
            kinds.ADDRESS,
            "",
            "address to listen on; by default the HTTP address, or 127.0.0.1 beside a unix socket",
        ),
        Option(
            "--metrics-port",
            kinds.PORT,
            "8002",
            "port to listen on; 0 for any free one",
            field="metrics_port",
        ),
        Option(
            "--allow-cpu-metrics",
            kinds.BOOL,
            "true",
            "measure processor and memory",
            field="cpu_metrics",
        ),
        Option(
            "--metrics-interval-ms",
            kinds.MILLISECONDS_ABOVE_0,
            "2000",
            "time between two such measurements",
            field="metrics_interval_s",
        ),
        Option(
            "--metrics-config",
            kinds.SETTING,
            "",
            "which families there are, such as summary_latencies=true; repeatable",
            field="metrics_config",
            repeatable=True,
        ),
    ),
)

LOGS: Final = Group(
    "log",
    (
        Option("--log-info", kinds.BOOL, "true", "log what happens", field="log.info"),
        Option("--log-warning", kinds.BOOL, "true", "log warnings", field="log.warning"),
        Option("--log-error", kinds.BOOL, "true", "log errors", field="log.error"),
        Option(
            "--log-verbose",
            kinds.VERBOSITY,
            "0",
            "from 1 on, log each call, and what models log as verbose",
            field="log.verbose_level",
        ),
        Option(
            "--log-format",
            kinds.choice(*LOG_FORMATS),
            "default",
            "how lines look; json is one object a line",
            field="log.format",
        ),
        Option(
            "--log-file",
            kinds.TEXT,
            "",
            "file that lines are appended to; by default standard error",
            field="log.file",
        ),
    ),
)

TRACES: Final = Group(
    "traces",
    (
        Option(
            "--trace-config",
            kinds.TRACE_SETTING,
            "",
            "what is traced (level=TIMESTAMPS rate=100 ...) and where traces go "
            "(triton,file=FILE or mode=opentelemetry opentelemetry,url=URL ...); repeatable",
            repeatable=True,
        ),
        Option("--trace-file", kinds.TEXT, "", "triton,file", instead="--trace-config"),
        Option(
            "--trace-level",
            kinds.TEXT,
            "",
            "level; repeatable",
            repeatable=True,
            instead="--trace-config",
        ),
        Option("--trace-rate", kinds.TEXT, "", "rate", instead="--trace-config"),
        Option("--trace-count", kinds.TEXT, "", "count", instead="--trace-config"),
        Option(
            "--trace-log-frequency",
            kinds.TEXT,
            "",
            "triton,log-frequency",
            instead="--trace-config",
        ),
    ),
)
