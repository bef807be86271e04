"""The frontends of one server over its core: everything that answers calls, not listening yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from prometheus_client import CollectorRegistry

from ._version import __version__
from .actors.core import Core
from .actors.frontend import Frontend
from .actors.grpc_connection import GrpcConnection
from .actors.grpc_health import HealthService
from .actors.grpc_logging import GrpcLogging
from .actors.grpc_reflection import ReflectionService
from .actors.grpc_repository import RepositoryService
from .actors.grpc_service import InferenceService, ModelInfer
from .actors.grpc_settings import GrpcSettings
from .actors.grpc_shared_memory import GrpcSharedMemory
from .actors.grpc_tracing import TraceSettingMethod
from .actors.http_api import HttpApi
from .actors.http_connection import HttpConnection
from .actors.http_generate import GenerateMethods
from .actors.http_logging import HttpLogging
from .actors.http_openai import OpenAiContext, OpenAiMethods
from .actors.http_openai_embeddings import OpenAiEmbeddings
from .actors.http_repository import HttpRepository
from .actors.http_sagemaker import HttpSagemaker
from .actors.http_service import HttpService
from .actors.http_settings import HttpSettings
from .actors.http_shared_memory import HttpSharedMemory
from .actors.http_tracing import TraceSettingApi
from .actors.http_vertex_ai import HttpVertexAi, vertex_ai_model
from .actors.log_control import CallLog
from .actors.metrics_collector import ModelCollector
from .actors.region_access import RegionAccess
from .actors.router import Router
from .actors.sagemaker_models import SagemakerModels
from .actors.server_info import ServerInfo
from .actors.system_monitor import SystemMonitor
from .actors.tls_stream import TlsAcceptor
from .call_rules import call_rules
from .listening import StartError
from .logs import Logs
from .memory.budget import ByteBudget
from .memory.response_cache import LocalCache
from .memory.shared_memory import SharedMemoryRegions
from .options import ServerOptions, VertexAiOptions
from .protocol.errors import RequestError
from .protocol.http_routes import RouteName
from .protocol.openai.gate import Gate
from .protocol.sagemaker import BINARY
from .protocol.vertex_ai import VertexAiRoutes
from .tls import GRPC_ALPN, NO_TLS, TlsContexts


@dataclass(frozen=True, slots=True)
class Parts:
    """One server's frontends over one core, not listening yet.

    Attributes:
      info: The server metadata.
      router: The core's router.
      budget: The byte budget all frontends share.
      http_api: Answers HTTP requests.
      http: Runs HTTP connections.
      grpc: Runs gRPC connections.
      metrics: Every metric of the server.
      system: What looks at processor and memory, if metrics are to have them; it runs nowhere yet.
      calls: Where answered calls are logged.
      sagemaker: Runs connections of the SageMaker endpoint; None without.
      vertex_ai: Runs those of the Vertex AI endpoint; None without.
    """

    info: ServerInfo
    router: Router
    budget: ByteBudget
    http_api: HttpApi
    http: Frontend
    grpc: Frontend
    metrics: CollectorRegistry
    system: SystemMonitor | None
    calls: CallLog
    sagemaker: Frontend | None
    vertex_ai: Frontend | None


def build_parts(
    options: ServerOptions, core: Core, logs: Logs | None = None, tls: TlsContexts = NO_TLS
) -> Parts:
    """Wire the frontends to a core that has started, and to a log that clients may change.

    Raises:
      StartError: the Vertex AI endpoint has no model.
    """
    router, budget, tracing = core.router, core.budget, core.tracing
    rules = call_rules(options)
    logs = logs or Logs(options.log)
    info = ServerInfo(options.server_id, __version__)
    shared_memory = SharedMemoryRegions(allowed=options.allow_client_shared_memory)
    regions = RegionAccess(router=router, regions=shared_memory, budget=budget)
    make_api = partial(
        HttpApi,
        router=router,
        info=info,
        input_bytes_max=options.http_input_bytes_max,
        budget=budget,
        tracing=tracing,
        regions=regions,
        restricted=rules.http_restricted,
        forwarding=rules.http_forwarding,
    )
    openai_restricted = rules.http_restricted if rules.openai_keys is None else None
    api = make_api(
        gate=Gate(
            input_bytes_max=options.http_input_bytes_max,
            keys=rules.openai_keys,
            restricted=openai_restricted,
        )
    )
    forward = None if rules.http_forwarding is None else rules.http_forwarding.http_parameters
    generate = GenerateMethods(
        router=router,
        input_bytes_max=options.http_input_bytes_max,
        tracing=tracing,
        forward=forward,
    )
    openai = OpenAiContext(
        router=router,
        tracing=tracing,
        now_s=lambda: datetime.now(UTC).timestamp(),
        forward=forward,
        names_models=openai_restricted is None
        or not openai_restricted.restricts(RouteName.OPENAI_MODELS),
    )
    api.extend(OpenAiMethods(openai).mapping())
    api.extend(OpenAiEmbeddings(openai).mapping())
    api.extend(generate.mapping())
    repository = HttpRepository(
        index=core.index, control=core.control, input_bytes_max=options.http_input_bytes_max
    )
    api.extend(repository.mapping())
    api.extend(HttpSharedMemory(shared_memory).mapping())
    api.extend(HttpLogging(logs).mapping())
    api.extend(TraceSettingApi(router=router, tracing=tracing).mapping())
    service = InferenceService(
        router=router,
        info=info,
        tracing=tracing,
        regions=regions,
        forwarding=rules.grpc_forwarding,
        compression_level=rules.grpc_compression,
    )
    infer = ModelInfer(router, tracing, regions, rules.grpc_forwarding)
    handlers = {
        **service.mapping(),
        **RepositoryService(index=core.index, control=core.control).mapping(),
        **GrpcSharedMemory(shared_memory).mapping(),
        **GrpcLogging(logs).mapping(),
        **HealthService(router=router).mapping(),
        **ReflectionService().mapping(),
        **TraceSettingMethod(router=router, tracing=tracing).mapping(),
    }
    grpc_settings = GrpcSettings(
        keep_alive=options.grpc_keep_alive, restricted=rules.grpc_restricted, calls=logs.calls
    )
    metrics = CollectorRegistry()
    system = SystemMonitor(interval_s=options.metrics_interval_s) if options.cpu_metrics else None
    metrics.register(
        ModelCollector(
            router.measured_models,
            config=core.metrics,
            cache=core.cache if isinstance(core.cache, LocalCache) else None,
            custom=core.custom_metrics,
            system=system,
        )
    )

    def serve_http(
        name: str, service: HttpService, acceptor: TlsAcceptor | None = None
    ) -> Frontend:
        return Frontend(
            name,
            lambda stream: HttpConnection(
                stream=stream, service=service, budget=budget, settings=http_settings
            ),
            tls=acceptor,
        )

    http_settings = HttpSettings(cancel_on_eof=not options.http_half_close, calls=logs.calls)
    sagemaker = vertex_ai = None
    if options.sagemaker is not None:
        sagemaker_api = make_api(binary_headers=BINARY.headers)
        sagemaker_api.extend(generate.mapping())
        sagemaker = serve_http(
            "SageMaker",
            HttpSagemaker(
                sagemaker_api,
                SagemakerModels(core.registers, core.run_in_thread),
                options.sagemaker.settings,
                restricted=rules.http_restricted,
            ),
        )
    if options.vertex_ai is not None:
        vertex_ai = serve_http(
            "Vertex AI", HttpVertexAi(api, vertex_ai_routes(options.vertex_ai, router), metrics)
        )
    return Parts(
        info=info,
        router=router,
        budget=budget,
        http_api=api,
        http=serve_http(
            "HTTP", api, None if tls.http is None else TlsAcceptor(tls.http, alpn=None)
        ),
        grpc=Frontend(
            "gRPC",
            lambda stream: GrpcConnection(
                stream=stream,
                handlers=handlers,
                direct={} if rules.grpc_compression else {infer.path: infer},
                budget=budget,
                settings=grpc_settings,
            ),
            tls=None if tls.grpc is None else TlsAcceptor(tls.grpc, alpn=GRPC_ALPN),
        ),
        metrics=metrics,
        system=system,
        calls=logs.calls,
        sagemaker=sagemaker,
        vertex_ai=vertex_ai,
    )


def vertex_ai_routes(options: VertexAiOptions, router: Router) -> VertexAiRoutes:
    """Return the routes of the endpoint, and the model they lead to.

    Raises:
      StartError: it is not to be told, or not READY.
    """
    try:
        model = vertex_ai_model(router, options.default_model)
    except RequestError as error:
        raise StartError(error.message) from None
    return VertexAiRoutes(options.predict_route.encode(), options.health_route.encode(), model)
