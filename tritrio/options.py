"""What the server can be told, with defaults; the command line and embedders both fill this."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from .actors.core import BYTE_BUDGET_DEFAULT
from .memory.cache_config import CacheConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of one server; names and defaults are Triton's where it has the option.

    Attributes:
      model_repositories: Directories that hold model directories; at least one.
      server_id: The name in the server metadata.
      exit_on_error: Whether a model that fails to load at the start ends the server.
      strict_readiness: Whether the server is ready only with every model ready.
      auto_complete_config: Whether configurations are completed from the models' files.
      exit_timeout_s: Seconds that requests in flight and unloading have at a stop.
      backend_settings: Backend name ("" for all) -> `--backend-config` settings.
      cache: Where responses are kept of models with `response_cache`; None for nowhere.
      instance_hang_s: Seconds an execution may take before its instance is given up; inf for ever.
      model_load_timeout_s: Seconds that completing the configuration of a model may take, and then
        the load of each instance; inf for ever.
      rate_limit: Whether executions are limited by the rate limiter.
      rate_limit_resources: (name, device or None for all) -> how much of a resource there is.
      overload_queue_age_s: Seconds the oldest request of a queue may wait before requests of low
        priority are refused; inf for ever.
      byte_budget: Most bytes of request bodies, queued tensors and unsent responses together.
      http_address: Address of the HTTP port; None for no HTTP.
      http_port: HTTP port; 0 for any free one.
      http_server: "tritrio" for our own HTTP/1.1 server, "hypercorn" for hypercorn.
      http_input_bytes_max: Most bytes of the JSON part of a request body.
      http_half_close: Whether a client that has shut its sending side down still gets answers;
        otherwise the end of its direction cancels its requests.
      grpc_address: Address of the gRPC port; None for no gRPC.
      grpc_port: gRPC port; 0 for any free one.
      metrics_address: Address of the metrics port; None for no metrics.
      metrics_port: Metrics port; 0 for any free one.
      log_verbose: Whether debug lines are logged.
    """

    model_repositories: tuple[Path, ...]
    server_id: str = "triton"
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    exit_timeout_s: float = 30.0
    backend_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    cache: CacheConfig | None = None
    instance_hang_s: float = inf
    model_load_timeout_s: float = inf
    rate_limit: bool = False
    rate_limit_resources: dict[tuple[str, int | None], int] = field(default_factory=dict)
    overload_queue_age_s: float = inf
    byte_budget: int = BYTE_BUDGET_DEFAULT
    http_address: str | None = "0.0.0.0"  # noqa: S104 - Triton's default
    http_port: int = 8000
    http_server: str = "tritrio"
    http_input_bytes_max: int = 64 * 1024 * 1024
    http_half_close: bool = False
    grpc_address: str | None = "0.0.0.0"  # noqa: S104 - Triton's default
    grpc_port: int = 8001
    metrics_address: str | None = "0.0.0.0"  # noqa: S104 - Triton's default
    metrics_port: int = 8002
    log_verbose: bool = False
