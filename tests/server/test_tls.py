"""Contexts made of files, and what is said of files that do not do."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import Certificates, write_certificates
from tritrio.listening import StartError
from tritrio.options import ServerOptions, TlsOptions
from tritrio.server import Server
from tritrio.tls import tls_context, tls_contexts


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


def refusal(certificate: Path, key: Path, root: Path | None = None, *, mutual: bool = False) -> str:
    options = TlsOptions(certificate=certificate, key=key, root=root, mutual=mutual)
    with pytest.raises(StartError) as raised:
        tls_context("gRPC", options, alpn="h2")
    return str(raised.value)


def test_context_takes_tls_1_2_and_later_and_no_renegotiation(certificates: Certificates) -> None:
    context = tls_context("gRPC", certificates.options(), alpn="h2")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode is ssl.CERT_NONE


def test_clients_have_to_show_certificates_in_mutual_mode_alone(
    certificates: Certificates,
) -> None:
    assert certificates.options().root is not None  # given, and not used
    context = tls_context("gRPC", certificates.options(mutual=True), alpn="h2")
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_ports_that_are_not_served_over_tls_have_no_context(certificates: Certificates) -> None:
    options = ServerOptions(model_repositories=(), grpc_tls=certificates.options())
    contexts = tls_contexts(options)
    assert contexts.http is None
    assert contexts.grpc is not None


def test_file_that_cannot_be_read_is_named(certificates: Certificates, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    certificate, key = certificates.server
    reason = "No such file or directory"
    assert refusal(missing, key) == (
        f"the certificate of gRPC, {missing}, cannot be used: {reason}"
    )
    assert refusal(certificate, missing) == f"the key of gRPC, {missing}, cannot be used: {reason}"
    assert refusal(certificate, key, missing, mutual=True) == (
        f"the root certificates of gRPC, {missing}, cannot be used: {reason}"
    )


def test_file_that_holds_something_else_is_named(
    certificates: Certificates, tmp_path: Path
) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("certainly no certificate")
    certificate, key = certificates.server
    assert refusal(rubbish, key) == (
        f"the certificate of gRPC, {rubbish}, cannot be used: expected certificates in PEM"
    )
    assert refusal(certificate, rubbish) == (
        f"the key of gRPC, {rubbish}, cannot be used: "
        "expected a private key in PEM without a password"
    )
    assert refusal(certificate, key, rubbish, mutual=True) == (
        f"the root certificates of gRPC, {rubbish}, cannot be used: expected certificates in PEM"
    )


def test_key_of_another_certificate_is_named_with_both_files(certificates: Certificates) -> None:
    certificate, _ = certificates.server
    _, key = certificates.client
    text = refusal(certificate, key)
    assert text == f"the key of gRPC, {key}, is not that of its certificate, {certificate}"


def test_key_with_a_password_is_refused_and_not_asked_for(
    certificates: Certificates, tmp_path: Path
) -> None:
    certificate, key = certificates.server
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x"]
    subprocess.run([*command, "-out", str(locked)], check=True, capture_output=True)
    text = refusal(certificate, locked)
    assert text.endswith("expected a private key in PEM without a password")
    assert str(locked) in text


def test_mutual_mode_without_root_certificates_is_refused(certificates: Certificates) -> None:
    text = refusal(*certificates.server, mutual=True)
    assert text.startswith("gRPC is to check the certificates of clients")


async def test_server_with_a_bad_file_does_not_start_and_loads_nothing(
    certificates: Certificates, tmp_path: Path
) -> None:
    certificate, _ = certificates.server
    options = ServerOptions(
        model_repositories=(tmp_path / "no such directory",),
        http_tls=TlsOptions(certificate=certificate, key=tmp_path / "missing.key"),
    )
    with pytest.raises(StartError, match=r"the key of HTTP, .*missing\.key, cannot be used"):
        await Server(options).run()
