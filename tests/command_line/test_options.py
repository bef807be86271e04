"""Every option of a Triton server is taken, in every form, and has a use or says why not."""

from __future__ import annotations

import dataclasses
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tritrio.command_line.assembly import CommandLine, parse_command_line
from tritrio.command_line.tables import OPTIONS
from tritrio.memory.cache_config import LocalConfig, RedisConfig
from tritrio.options import GrpcKeepAlive, ServerOptions, TlsOptions
from tritrio.protocol.log_settings import LogSettings

REQUIRED = "--model-repository=models"


def parse(*arguments: str, environment: dict[str, str] | None = None) -> CommandLine:
    return parse_command_line([REQUIRED, *arguments], environment or {})


def fields(options: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of options, those of their parts with the part's name in front."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, LogSettings | GrpcKeepAlive):
            found |= fields(value, f"{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def changed(*arguments: str) -> dict[str, Any]:
    """The fields that differ from those of a command line without these arguments."""
    before, after = fields(parse().options), fields(parse(*arguments).options)
    return {name: value for name, value in after.items() if value != before[name]}


USED = [
    ("--id=x", {"server_id": "x"}),
    ("--exit-timeout-secs=5", {"exit_timeout_s": 5}),
    ("--model-store=other", {"model_repositories": (Path("models"), Path("other"))}),
    ("--model-repository=other", {"model_repositories": (Path("models"), Path("other"))}),
    ("--exit-on-error=false", {"exit_on_error": False}),
    ("--disable-auto-complete-config", {"auto_complete_config": False}),
    ("--disable-auto-complete-config=true", {"auto_complete_config": False}),
    ("--strict-readiness=false", {"strict_readiness": False}),
    ("--model-control-mode=poll", {"model_control": "poll"}),
    ("--model-control-mode=explicit", {"model_control": "explicit"}),
    ("--repository-poll-secs=0", {"repository_poll_s": 0}),
    ("--model-config-name=custom", {"model_config_name": "custom"}),
    ("--model-load-thread-count=1", {"model_load_threads": 1}),
    ("--model-load-retry-count=3", {"model_load_retries": 3}),
    ("--model-load-timeout-secs=2.5", {"model_load_timeout_s": 2.5}),
    ("--model-namespacing=true", {"model_namespacing": True}),
    ("--backend-config=python,a=b=c", {"backend_settings": {"python": {"a": "b=c"}}}),
    ("--backend-config=a=b", {"backend_settings": {"": {"a": "b"}}}),
    ("--allow-http=off", {"http_address": None}),
    ("--http-address=127.0.0.1", {"http_address": "127.0.0.1", "metrics_address": "127.0.0.1"}),
    (
        "--http-address=unix:/run/x",
        {"http_address": "unix:/run/x", "metrics_address": "127.0.0.1"},
    ),
    ("--http-port=1", {"http_port": 1}),
    ("--http-port=" + "0" * 5000 + "1", {"http_port": 1}),
    ("--reuse-http-port=1", {"http_reuse_port": True}),
    ("--http-header-forward-pattern=x-.*", {"http_header_forward_pattern": "x-.*"}),
    ("--http-max-input-size=1", {"http_input_bytes_max": 1}),
    (
        "--http-restricted-api=model-repository,logging:admin-key=a:b=c",
        {"http_restricted_apis": ("model-repository,logging:admin-key=a:b=c",)},
    ),
    ("--http-server=hypercorn", {"http_server": "hypercorn"}),
    ("--http-half-close=true", {"http_half_close": True}),
    ("--allow-grpc=0", {"grpc_address": None}),
    ("--grpc-address=::1", {"grpc_address": "::1"}),
    ("--grpc-port=2", {"grpc_port": 2}),
    ("--reuse-grpc-port=ON", {"grpc_reuse_port": True}),
    ("--grpc-header-forward-pattern=y", {"grpc_header_forward_pattern": "y"}),
    ("--grpc-restricted-protocol=health:k=v", {"grpc_restricted_protocols": ("health:k=v",)}),
    ("--grpc-infer-response-compression-level=low", {"grpc_compression_level": "low"}),
    ("--grpc-keepalive-time=500", {"grpc_keep_alive.time_s": 0.5}),
    ("--grpc-keepalive-timeout=250", {"grpc_keep_alive.timeout_s": 0.25}),
    (
        "--grpc-keepalive-permit-without-calls=True",
        {"grpc_keep_alive.permit_without_calls": True},
    ),
    ("--grpc-http2-max-pings-without-data=0", {"grpc_keep_alive.pings_without_data_max": 0}),
    (
        "--grpc-http2-min-recv-ping-interval-without-data=0",
        {"grpc_keep_alive.ping_interval_min_s": 0.0},
    ),
    ("--grpc-http2-max-ping-strikes=9", {"grpc_keep_alive.ping_strikes_max": 9}),
    ("--grpc-max-connection-age=2000", {"grpc_keep_alive.connection_age_max_s": 2.0}),
    ("--grpc-max-connection-age-grace=1000", {"grpc_keep_alive.connection_age_grace_s": 1.0}),
    ("--allow-metrics=false", {"metrics_address": None}),
    ("--metrics-address=::", {"metrics_address": "::"}),
    ("--metrics-port=3", {"metrics_port": 3}),
    ("--allow-cpu-metrics=false", {"cpu_metrics": False}),
    ("--metrics-interval-ms=500", {"metrics_interval_s": 0.5}),
    ("--metrics-config=summary_latencies=true", {"metrics_config": ("summary_latencies=true",)}),
    ("--log-verbose=2", {"log.verbose_level": 2}),
    ("--log-verbose=" + "0" * 5000 + "2", {"log.verbose_level": 2}),
    ("--log-verbose=TRUE", {"log.verbose_level": 1}),
    ("--log-info=false", {"log.info": False}),
    ("--log-warning=false", {"log.warning": False}),
    ("--log-error=false", {"log.error": False}),
    ("--log-format=ISO8601", {"log.format": "ISO8601"}),
    ("--log-format=json", {"log.format": "json"}),
    ("--log-file=x", {"log.file": "x"}),
    ("--trace-config=triton,file=x", {"trace_config": ("triton,file=x",)}),
    ("--trace-config=rate=5", {"trace_config": ("rate=5",)}),
    ("--cache-config=local,size=9", {"cache": LocalConfig(9)}),
    ("--rate-limit=execution_count", {"rate_limit": True}),
    ("--rate-limit-resource=R:2:1", {"rate_limit_resources": {("R", 1): 2}}),
    ("--instance-hang-secs=4", {"instance_hang_s": 4.0}),
    ("--overload-queue-age-secs=1", {"overload_queue_age_s": 1.0}),
    ("--byte-budget=7", {"byte_budget": 7}),
    ("--allow-client-shm=true", {"allow_client_shared_memory": True}),
]

DEPRECATED = [
    ("--strict-model-config=true", {"auto_complete_config": False}),
    ("--response-cache-byte-size=9", {"cache": LocalConfig(9)}),
    ("--trace-file=x", {"trace_config": ("triton,file=x",)}),
    ("--trace-level=TIMESTAMPS", {"trace_config": ("level=TIMESTAMPS",)}),
    ("--trace-rate=5", {"trace_config": ("rate=5",)}),
    ("--trace-count=-1", {"trace_config": ("count=-1",)}),
    ("--trace-log-frequency=7", {"trace_config": ("triton,log-frequency=7",)}),
]

UNUSED = [
    "--model-load-gpu-limit=0:0.5",
    "--enable-peer-access=false",
    "--http-thread-count=3",
    "--grpc-infer-thread-count=128",
    "--grpc-infer-allocation-pool-size=0",
    "--grpc-max-response-pool-size=1",
    "--sagemaker-thread-count=2",
    "--vertex-ai-thread-count=2",
    "--allow-gpu-metrics=false",
    "--cache-directory=x",
    "--pinned-memory-pool-byte-size=0",
    "--cuda-memory-pool-byte-size=0:1024",
    "--cuda-virtual-address-size=1:1024",
    "--min-supported-compute-capability=6.0",
    "--buffer-manager-thread-count=2",
    "--host-policy=gpu_0,numa-node=0",
    "--backend-directory=x",
    "--repoagent-directory=x",
]

OF_OTHER_TESTS = {
    *(
        f"--{protocol}-{what}"
        for protocol in ("http", "grpc")
        for what in ("use-ssl", "use-ssl-mutual", "server-cert", "server-key", "root-cert")
    ),
    "--load-model",
    "--openai-api-key-file",
    "--allow-sagemaker",
    "--sagemaker-port",
    "--sagemaker-safe-port-range",
    "--allow-vertex-ai",
    "--vertex-ai-port",
    "--vertex-ai-default-model",
}


@pytest.mark.parametrize(("argument", "expected"), USED)
def test_an_option_sets_what_it_names_and_nothing_else(
    argument: str, expected: dict[str, Any]
) -> None:
    assert changed(argument) == expected
    assert parse(argument).warnings == ()
    if "=" in argument:
        assert changed(*argument.split("=", 1)) == expected  # --option VALUE


@pytest.mark.parametrize(("argument", "expected"), DEPRECATED)
def test_a_deprecated_option_works_and_says_what_replaces_it(
    argument: str, expected: dict[str, Any]
) -> None:
    assert changed(argument) == expected
    assert changed(*argument.split("=", 1)) == expected
    (warning,) = parse(argument).warnings
    name = argument.partition("=")[0]
    assert warning.startswith(f"{name} is deprecated; use --")


@pytest.mark.parametrize("argument", UNUSED)
def test_an_option_that_means_nothing_here_is_taken_and_says_why_once(argument: str) -> None:
    assert changed(argument) == {}
    assert changed(*argument.split("=", 1)) == {}
    (warning,) = parse(argument, argument).warnings
    name = argument.partition("=")[0]
    assert warning.startswith(f"{name} has no effect: ")


def test_no_option_is_left_out_of_these_tests() -> None:
    arguments = [*(one for one, _ in [*USED, *DEPRECATED]), *UNUSED]
    tried = {argument.partition("=")[0] for argument in arguments}
    known = {option.name for option in OPTIONS} | {option.also for option in OPTIONS} - {""}
    assert tried | OF_OTHER_TESTS == known


def test_the_defaults_are_those_of_the_server_options() -> None:
    assert parse().options == ServerOptions(model_repositories=(Path("models"),))


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.field], ids=lambda one: one.name)
def test_the_default_that_help_shows_is_the_one_that_holds(option: Any) -> None:
    value = fields(parse().options)[option.field]
    if not option.default:
        assert value in ("", ())
    elif option.default == "0" and value == inf:
        assert option.kind.read("0") == inf
    else:
        assert option.kind.read(option.default) == pytest.approx(value)


@pytest.mark.parametrize("text", ["true", "TRUE", "On", "1"])
def test_a_boolean_is_true_in_any_of_these_forms(text: str) -> None:
    assert parse(f"--reuse-http-port={text}").options.http_reuse_port is True


@pytest.mark.parametrize("text", ["false", "False", "oFF", "0"])
def test_a_boolean_is_false_in_any_of_these_forms(text: str) -> None:
    assert parse(f"--exit-on-error={text}").options.exit_on_error is False


def test_options_that_are_repeated_add_up_or_the_last_one_wins() -> None:
    options = parse(
        "--id=a", "--id=b", "--trace-config=rate=1", "--trace-config=level=TENSORS"
    ).options
    assert options.server_id == "b"
    assert options.trace_config == ("rate=1", "level=TENSORS")


def test_repositories_are_a_sorted_set() -> None:
    options = parse("--model-store=a", "--model-repository=z", "--model-store=models").options
    assert options.model_repositories == (Path("a"), Path("models"), Path("z"))


def test_the_new_option_wins_over_the_deprecated_one() -> None:
    line = parse(
        "--trace-file=old", "--trace-rate=7", "--trace-config=triton,file=new", "--trace-level=MAX"
    )
    assert line.options.trace_config == ("triton,file=new", "level=MAX", "rate=7")
    assert all("which wins where both say something" in warning for warning in line.warnings)
    assert len(line.warnings) == 3
    line = parse("--disable-auto-complete-config=false", "--strict-model-config=true")
    assert line.options.auto_complete_config


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls_takes_its_files(protocol: str, tmp_path: Path) -> None:
    files = {what: tmp_path / f"{what}.pem" for what in ("server-cert", "server-key", "root-cert")}
    for path in files.values():
        path.touch()
    given = [f"--{protocol}-{what}={path}" for what, path in files.items()]
    field = f"{protocol}_tls"
    assert getattr(parse(*given).options, field) is None  # nobody asked for it
    one_sided = getattr(parse(f"--{protocol}-use-ssl=true", *given[:2]).options, field)
    assert one_sided == TlsOptions(certificate=files["server-cert"], key=files["server-key"])
    mutual = getattr(parse(f"--{protocol}-use-ssl-mutual=true", *given).options, field)
    assert mutual == TlsOptions(
        certificate=files["server-cert"],
        key=files["server-key"],
        root=files["root-cert"],
        mutual=True,
    )


def test_models_to_load_need_explicit_control() -> None:
    explicit = "--model-control-mode=explicit"
    options = parse(explicit, "--load-model=b", "--load-model", "a", "--load-model=b").options
    assert options.startup_models == ("b", "a")
    assert parse(explicit, "--load-model=*").options.startup_models == ("*",)


def test_redis_finds_its_address_in_the_environment() -> None:
    environment = {"TRITON_REDIS_HOST": "h", "TRITON_REDIS_PORT": "7"}
    cache = parse("--cache-config=redis,db=1", environment=environment).options.cache
    assert isinstance(cache, RedisConfig)
    assert (cache.host, cache.port, cache.db) == ("h", 7, 1)
