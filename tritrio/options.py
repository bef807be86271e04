"""What the server can be told, with defaults; the command line and embedders both fill this."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from .actors._keep_alive_policy import GrpcKeepAlive
from .actors.core import BYTE_BUDGET_DEFAULT
from .memory.cache_config import CacheConfig
from .protocol.log_settings import LogSettings
from .protocol.sagemaker import SagemakerSettings

__all__ = ["GrpcKeepAlive", "LogSettings", "ServerOptions", "TlsOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """With what a port is served over TLS.

    Attributes:
      certificate: PEM file of the server's certificate, with those between it and the root.
      key: PEM file of its private key.
      root: PEM file of the certificates that clients' certificates are checked against.
      mutual: Whether clients have to show a certificate.
    """

    certificate: Path
    key: Path
    root: Path | None = None
    mutual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SagemakerOptions:
    """Where and how the SageMaker endpoint is served.

    Attributes:
      address: Its address.
      port: Its port; 0 for any free one.
      settings: What the platform says.
    """

    address: str = "0.0.0.0"  # noqa: S104 - Triton's
    port: int = 8080
    settings: SagemakerSettings = field(default_factory=SagemakerSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexAiOptions:
    """Where and how the Vertex AI endpoint is served.

    Attributes:
      predict_route: The path of predictions, as the platform names it.
      health_route: The path of health checks, likewise.
      address: Its address.
      port: Its port; 0 for any free one.
      default_model: The model that predictions are for; "" for the only one there is.
    """

    predict_route: str
    health_route: str
    address: str = "0.0.0.0"  # noqa: S104 - Triton's
    port: int = 8080
    default_model: str = ""


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
      model_control: How models come and go: "none" serves what is there at the start, "poll"
        follows the repositories, "explicit" loads and unloads on request.
      startup_models: Models that explicit control loads at the start; ("*",) for all.
      repository_poll_s: Seconds between two looks at the repositories; 0 for none but the first.
      model_config_name: File `configs/<name>.pbtxt` that is read in place of `config.pbtxt`; "" for
        none.
      model_load_threads: Models loaded at a time.
      model_load_retries: How often a load that failed is tried again.
      model_namespacing: Whether models of one name may lie in several repositories, whose paths are
        their namespaces.
      allow_client_shared_memory: Whether clients may register shared memory.
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
      http_header_forward_pattern: Regular expression; HTTP headers whose names it is found in
        become parameters of inference requests; "" for none.
      http_restricted_apis: `<api>[,<api>...]:<key>=<value>` each; a call of one of the APIs needs
        the header <key> with this value.
      openai_api_keys: What clients of OpenAI's API send as keys; none lets everybody in.
      http_reuse_port: Whether several processes may listen on the HTTP port.
      http_tls: With what HTTP is served as HTTPS; None for HTTP.
      grpc_address: Address of the gRPC port; None for no gRPC.
      grpc_port: gRPC port; 0 for any free one.
      grpc_header_forward_pattern: As for HTTP, for the metadata of gRPC.
      grpc_restricted_protocols: As for HTTP, with the metadata key `triton-grpc-protocol-<key>`.
      grpc_reuse_port: Whether several processes may listen on the gRPC port.
      grpc_tls: With what gRPC is served over TLS; None for none.
      grpc_compression_level: How hard responses are compressed for clients that take it: "none",
        "low", "medium" or "high".
      grpc_keep_alive: When pings are sent, and how many are taken.
      metrics_address: Address of the metrics port; None for no metrics.
      metrics_port: Metrics port; 0 for any free one.
      metrics_config: `<setting>=<value>` each, as of `--metrics-config`.
      metrics_interval_s: Seconds between two measurements of processor and memory.
      cpu_metrics: Whether processor and memory are measured.
      sagemaker: The SageMaker endpoint; None for none.
      vertex_ai: The Vertex AI endpoint; None for none.
      trace_config: `<setting>=<value>` or `<mode>,<setting>=<value>` each, as of `--trace-config`.
      log: What is logged, and how.
    """

    model_repositories: tuple[Path, ...]
    server_id: str = "triton"
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    exit_timeout_s: float = 30.0
    backend_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    model_control: str = "none"
    startup_models: tuple[str, ...] = ()
    repository_poll_s: float = 15.0
    model_config_name: str = ""
    model_load_threads: int = 4
    model_load_retries: int = 0
    model_namespacing: bool = False
    allow_client_shared_memory: bool = False
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
    http_header_forward_pattern: str = ""
    http_restricted_apis: tuple[str, ...] = ()
    openai_api_keys: tuple[str, ...] = field(default=(), repr=False)
    http_reuse_port: bool = False
    http_tls: TlsOptions | None = None
    grpc_address: str | None = "0.0.0.0"  # noqa: S104 - Triton's default
    grpc_port: int = 8001
    grpc_header_forward_pattern: str = ""
    grpc_restricted_protocols: tuple[str, ...] = ()
    grpc_reuse_port: bool = False
    grpc_tls: TlsOptions | None = None
    grpc_compression_level: str = "none"
    grpc_keep_alive: GrpcKeepAlive = field(default_factory=GrpcKeepAlive)
    metrics_address: str | None = "0.0.0.0"  # noqa: S104 - Triton's default
    metrics_port: int = 8002
    metrics_config: tuple[str, ...] = ()
    metrics_interval_s: float = 2.0
    cpu_metrics: bool = True
    sagemaker: SagemakerOptions | None = None
    vertex_ai: VertexAiOptions | None = None
    trace_config: tuple[str, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)
