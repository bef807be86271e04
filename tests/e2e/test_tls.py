"""TLS and mutual TLS with the clients that people use, on both HTTP servers and on gRPC."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trio
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.certificates import NAME, Certificates
from tests.support.server_process import HOST
from tests.support.serving import serving

from .raw_http import infer_body, receive, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMIT_S = 20.0
VALUES = np.arange(6, dtype=np.float32).reshape(1, 6)
LARGE = np.arange(2_000_000, dtype=np.float32).reshape(1, -1)
BODY = infer_body([1, 2, 3], [1, 3])
INFER = "/v2/models/identity/infer"


async def in_thread(function: Callable[[], Any]) -> Any:
    return await trio.to_thread.run_sync(function)


async def curl(*arguments: str) -> tuple[int, str]:
    """What curl prints, and its exit code."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    command = [program, "-sS", "--max-time", str(LIMIT_S), *arguments]
    done = await trio.run_process(
        command, check=False, capture_stdout=True, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout.decode()


def tensor(library: Any, values: np.ndarray[Any, Any]) -> Any:
    made = library.InferInput("INPUT0", list(values.shape), "FP32")
    made.set_data_from_numpy(values)
    return made


def message(values: np.ndarray[Any, Any]) -> Any:
    made = service_pb2.ModelInferRequest(model_name="identity")
    made.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    made.raw_input_contents.append(values.tobytes())
    return made


def credentials(
    certificates: Certificates, identity: tuple[Path, Path] | None = None
) -> grpc.ChannelCredentials:
    chain, key = (None, None) if identity is None else (path.read_bytes() for path in identity)
    return grpc.ssl_channel_credentials(certificates.root.read_bytes(), key, chain)


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
@pytest.mark.parametrize("mutual", [False, True])
async def test_curl_and_the_http_client_infer_over_tls(
    certificates: Certificates, models: Path, http_server: str, mutual: bool
) -> None:
    tls = certificates.options(mutual=mutual)
    certificate, key = map(str, certificates.client)
    async with serving(models, http_tls=tls, http_server=http_server) as bound:
        assert bound.http is not None
        port = bound.http[1]
        url = f"https://{NAME}:{port}"
        trust = ["--cacert", str(certificates.root), "--resolve", f"{NAME}:{port}:{HOST}"]
        show = ["--cert", certificate, "--key", key] if mutual else []
        for more in ([], ["--http1.0"], ["--tls-max", "1.2"], ["--http2"]):
            code, text = await curl(*trust, *show, *more, f"{url}{INFER}", "-d", BODY.decode())
            assert code == 0, text
            assert json.loads(text)["outputs"][0]["data"] == [1.0, 2.0, 3.0]
        code, text = await curl(*trust, *show, "--http2", "-v", f"{url}/v2")
        assert "server accepted http/1.1" in text  # it is not offered more
        code, _ = await curl(f"{url}/v2", "--resolve", f"{NAME}:{port}:{HOST}")
        assert code == 60  # whose certificate is it?

        def infer() -> None:
            def context() -> ssl.SSLContext:
                return certificates.client_context(identity=certificates.client)

            with triton_http.InferenceServerClient(
                f"{NAME}:{port}", ssl=True, ssl_context_factory=context
            ) as client:
                for values in (VALUES, LARGE):
                    result = client.infer("identity", [tensor(triton_http, values)])
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)

        await in_thread(infer)


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
async def test_http_client_without_the_right_certificate_is_turned_away_where_it_is_mutual(
    certificates: Certificates, models: Path, http_server: str
) -> None:
    tls = certificates.options(mutual=True)
    async with serving(models, http_tls=tls, http_server=http_server) as bound:
        assert bound.http is not None
        url = f"https://{NAME}:{bound.http[1]}/v2"
        trust = ["--cacert", str(certificates.root)]
        stranger, key = map(str, certificates.stranger)
        for show in ([], ["--cert", stranger, "--key", key]):
            code, text = await curl(*trust, *show, url)
            # In the handshake, or right after it with the alert or without.
            assert code in {35, 52, 56}, text
        certificate, key = map(str, certificates.client)
        code, _ = await curl(*trust, "--cert", certificate, "--key", key, url)
        assert code == 0


@pytest.mark.parametrize("mutual", [False, True])
async def test_grpc_clients_infer_and_stream_over_tls(
    certificates: Certificates, models: Path, mutual: bool
) -> None:
    async with serving(models, grpc_tls=certificates.options(mutual=mutual)) as bound:
        assert bound.grpc is not None
        url = f"{NAME}:{bound.grpc[1]}"
        certificate, key = certificates.client

        def call() -> None:
            identity = certificates.client if mutual else None
            with grpc.secure_channel(url, credentials(certificates, identity)) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                for values in (VALUES, VALUES[:, :100]):
                    answer = stub.ModelInfer(message(values), timeout=LIMIT_S)
                    assert answer.raw_output_contents[0] == values.tobytes()
                answers = stub.ModelStreamInfer(iter([message(VALUES)] * 20), timeout=LIMIT_S)
                assert len(list(answers)) == 20

        def call_by_the_client_library() -> None:
            with triton_grpc.InferenceServerClient(
                url,
                ssl=True,
                root_certificates=str(certificates.root),
                private_key=str(key) if mutual else None,
                certificate_chain=str(certificate) if mutual else None,
                keepalive_options=triton_grpc.KeepAliveOptions(
                    keepalive_time_ms=10_000, keepalive_timeout_ms=5_000
                ),
            ) as client:
                assert client.is_server_ready(client_timeout=LIMIT_S)
                for values in (VALUES, LARGE):
                    result = client.infer("identity", [tensor(triton_grpc, values)])
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)

        await in_thread(call)
        await in_thread(call_by_the_client_library)


async def test_grpc_client_without_the_right_certificate_is_turned_away_where_it_is_mutual(
    certificates: Certificates, models: Path
) -> None:
    async with serving(models, grpc_tls=certificates.options(mutual=True)) as bound:
        assert bound.grpc is not None
        url = f"{NAME}:{bound.grpc[1]}"

        def call(identity: tuple[Path, Path] | None) -> grpc.StatusCode:
            with grpc.secure_channel(url, credentials(certificates, identity)) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                try:
                    stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=LIMIT_S)
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

        assert await in_thread(lambda: call(None)) is grpc.StatusCode.UNAVAILABLE
        assert await in_thread(lambda: call(certificates.stranger)) is grpc.StatusCode.UNAVAILABLE
        assert await in_thread(lambda: call(certificates.client)) is grpc.StatusCode.OK


async def test_client_that_wants_new_keys_is_told_at_once_that_there_are_none(
    certificates: Certificates, models: Path
) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    async with serving(models, http_tls=certificates.options()) as bound:
        assert bound.http is not None
        command = [program, "s_client", "-tls1_2", "-connect", f"{HOST}:{bound.http[1]}"]
        with trio.fail_after(LIMIT_S):
            done = await trio.run_process(
                command, stdin=b"R\n", check=False, capture_stdout=True, capture_stderr=True
            )
        assert b"no renegotiation" in done.stderr


def answer_to(port: int, greeting: bytes) -> bytes:
    """All that a server says to a greeting until it closes."""
    with socket.create_connection((HOST, port), timeout=LIMIT_S) as connection:
        connection.sendall(greeting)
        received = b""
        while data := connection.recv(65_536):
            received += data
        return received


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
async def test_plain_clients_of_tls_ports_get_an_end_and_the_server_goes_on(
    certificates: Certificates, models: Path, http_server: str
) -> None:
    tls = certificates.options()
    options = {"http_tls": tls, "grpc_tls": tls, "http_server": http_server}
    async with serving(models, **options) as bound:
        assert bound.http is not None
        assert bound.grpc is not None
        for port in (bound.http[1], bound.grpc[1]):
            for greeting in (request("GET", "/v2"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
                said = await in_thread(partial(answer_to, port, greeting))
                assert said[:1] in {b"", b"\x15"}  # nothing, or an alert

        def ask() -> None:
            context = certificates.client_context(alpn=("http/1.1",))
            assert bound.http is not None
            with (
                socket.create_connection((HOST, bound.http[1]), timeout=LIMIT_S) as plain,
                context.wrap_socket(plain, server_hostname=NAME) as connection,
            ):
                connection.sendall(request("POST", INFER, BODY))
                assert receive(connection).status == 200

        await in_thread(ask)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_tls_client_of_a_plain_port_fails_at_once(
    certificates: Certificates, models: Path, protocol: str
) -> None:
    async with serving(models) as bound:
        address = bound.http if protocol == "http" else bound.grpc
        assert address is not None
        port = address[1]

        def greet() -> None:
            context = certificates.client_context(alpn=("h2",))
            with (
                socket.create_connection((HOST, port), timeout=LIMIT_S) as plain,
                pytest.raises((ssl.SSLError, ConnectionError)),
            ):
                context.wrap_socket(plain, server_hostname=NAME)

        await in_thread(greet)


async def test_grpc_over_tls_needs_http2_to_be_agreed_on(
    certificates: Certificates, models: Path
) -> None:
    async with serving(models, grpc_tls=certificates.options()) as bound:
        assert bound.grpc is not None
        port = bound.grpc[1]

        def greet() -> bytes:
            context = certificates.client_context(alpn=("http/1.1",))
            with (
                socket.create_connection((HOST, port), timeout=LIMIT_S) as plain,
                context.wrap_socket(plain, server_hostname=NAME) as connection,
            ):
                return connection.recv(100)

        assert await in_thread(greet) == b""


async def test_clients_over_tls_are_drained_as_others_are(
    certificates: Certificates, models: Path
) -> None:
    """An idle client, one in the middle of a request, and one within the handshake."""
    tls = certificates.options()
    async with serving(models, http_tls=tls, grpc_tls=tls, exit_timeout_s=20.0) as bound:
        assert bound.http is not None
        context = certificates.client_context()
        streams = []
        for greeting in (b"", b"POST /v2 HTTP/1.1\r\n"):
            stream = await trio.open_ssl_over_tcp_stream(
                HOST, bound.http[1], ssl_context=context, https_compatible=True
            )
            await stream.do_handshake()
            if greeting:
                await stream.send_all(greeting)
            streams.append(stream)
        silent = await trio.open_tcp_stream(HOST, bound.http[1])
        start_s = trio.current_time()
    assert trio.current_time() - start_s < 5.0
    for stream in streams:
        assert await stream.receive_some() == b""
        await trio.aclose_forcefully(stream)
    await silent.aclose()


async def test_the_start_says_what_is_served_over_tls(
    models: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tritrio"):
        async with serving(models, http_tls=certificates.options()) as bound:
            assert bound.http is not None
            assert bound.grpc is not None
    assert f"HTTP is served on {HOST}:{bound.http[1]} over TLS" in caplog.messages
    assert f"gRPC is served on {HOST}:{bound.grpc[1]}" in caplog.messages
