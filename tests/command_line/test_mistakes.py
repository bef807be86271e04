"""What is wrong with a command line is said in one sentence, and the exit code is 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritrio.command_line.assembly import parse_command_line

REQUIRED = "--model-repository=models"


def fault(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command line that must fail says, without the name in front."""
    with pytest.raises(SystemExit) as caught:
        parse_command_line(arguments, {})
    assert caught.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("tritrio: ")
    return line.removeprefix("tritrio: ")


@pytest.mark.parametrize(
    ("argument", "facts"),
    [
        ("--http-port=abc", ["a port number up to 65535", "'abc'"]),
        ("--http-port=", ["a port number up to 65535", "''"]),
        ("--grpc-port=65536", ["a port number up to 65535", "'65536'"]),
        ("--metrics-port=-1", ["a port number up to 65535", "'-1'"]),
        ("--http-port=" + "9" * 5000, ["a port number up to 65535"]),
        ("--grpc-port=" + "0" * 20 + "65536", ["a port number up to 65535"]),
        ("--repository-poll-secs=" + "0" * 20 + "9" * 10, ["a number of seconds"]),
        ("--id=caf\udce9", ["text in UTF-8", "'caf\\udce9'"]),
        ("--log-file=caf\udce9", ["text in UTF-8", "'caf\\udce9'"]),
        ("--exit-on-error=maybe", ["true or false", "'maybe'"]),
        ("--disable-auto-complete-config=si", ["true or false", "'si'"]),
        ("--exit-timeout-secs=-1", ["a number of seconds", "'-1'"]),
        ("--exit-timeout-secs=1.5", ["a number of seconds", "'1.5'"]),
        ("--model-load-timeout-secs=inf", ["a number of seconds", "'inf'"]),
        ("--http-max-input-size=0", ["a number above 0", "'0'"]),
        ("--http-server=nginx", ["tritrio or hypercorn", "'nginx'"]),
        ("--http-address=", ["an address", "''"]),
        ("--grpc-address=unix:", ["unix:<path>", "'unix:'"]),
        ("--backend-config=python", ["[<backend>,]<setting>=<value>", "'python'"]),
        ("--backend-config=,a=b", ["[<backend>,]<setting>=<value>", "',a=b'"]),
        ("--log-verbose=-1", ["a level of at least 0", "'-1'"]),
        ("--log-verbose=loud", ["true or false", "'loud'"]),
        ("--log-format=xml", ["default, ISO8601 or json", "'xml'"]),
        ("--model-control-mode=all", ["none, poll or explicit", "'all'"]),
        ("--model-config-name=", ["a name that is not empty", "''"]),
        ("--model-load-thread-count=0", ["at least 1", "'0'"]),
        ("--repository-poll-secs=x", ["a number of seconds", "'x'"]),
        ("--metrics-interval-ms=0", ["a number of milliseconds of at least 1", "'0'"]),
        ("--grpc-keepalive-time=0", ["a number of milliseconds of at least 1", "'0'"]),
        ("--metrics-config=a,b=c", ["<setting>=<value>", "'a,b=c'"]),
        ("--metrics-config=a", ["<setting>=<value>", "'a'"]),
        ("--trace-config=triton", ["<mode>,<setting>=<value>", "'triton'"]),
        ("--trace-config=a,b,c=d", ["<mode>,<setting>=<value>", "'a,b,c=d'"]),
        ("--http-header-forward-pattern=(", ["a regular expression", "'('"]),
        ("--http-restricted-api=health", ["<api>[,<api>...]:<key>=<value>", "'health'"]),
        ("--grpc-restricted-protocol=health:k", ["<api>[,<api>...]:<key>=<value>", "'health:k'"]),
        ("--grpc-infer-response-compression-level=9", ["none, low, medium or high", "'9'"]),
        ("--grpc-infer-thread-count=1", ["a number from 2 to 128", "'1'"]),
        ("--grpc-infer-thread-count=129", ["a number from 2 to 128", "'129'"]),
        ("--grpc-max-response-pool-size=0", ["at least 1", "'0'"]),
        ("--cuda-memory-pool-byte-size=5", ["<gpu>:<bytes>", "'5'"]),
        ("--model-load-gpu-limit=0:1.5", ["<gpu>:<fraction from 0 to 1>", "'0:1.5'"]),
        ("--host-policy=a,b=c", ["numa-node", "'a,b=c'"]),
        ("--sagemaker-safe-port-range=5", ["<port>-<port>", "'5'"]),
        ("--min-supported-compute-capability=x", ["a number", "'x'"]),
        ("--rate-limit=sometimes", ["off or execution_count", "'sometimes'"]),
        ("--rate-limit-resource=R", ["'R'"]),
        ("--http-port", ["expected one argument"]),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(
    argument: str, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = fault(capsys, REQUIRED, argument)
    assert [fact for fact in [argument.partition("=")[0], *facts] if fact not in line] == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--htp-port=1"],
            "there is no option '--htp-port'; did you mean --http-port?",
        ),
        (
            ["--model-repositry", "x"],
            "there is no option '--model-repositry'; did you mean --model-repository?",
        ),
        (
            ["--model-repo=x"],
            "there is no option '--model-repo'; did you mean --model-repository?",
        ),
        (
            ["--model-stor=x"],
            "there is no option '--model-stor'; did you mean --model-repository?",
        ),
        (["--qqqqqqqq=1"], "there is no option '--qqqqqqqq'; --help lists those there are"),
        (["surplus"], "expected options alone, got 'surplus'"),
        (["--exit-timeout=1"], "there is no option '--exit-timeout'; did you mean"),
        (["--load-model=a"], "--load-model needs --model-control-mode=explicit"),
        (
            ["--model-control-mode=poll", "--load-model=a"],
            "--load-model needs --model-control-mode=explicit",
        ),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "--load-model='*' means all models and must be the only name, got 'a' beside it",
        ),
        (
            ["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "--response-cache-byte-size and --cache-config exclude each other; use the latter",
        ),
        (["--cache-config=disk,size=1"], "--cache-config"),
        (
            ["--http-port=7", "--grpc-port=7"],
            "HTTP and gRPC cannot both be served on 0.0.0.0, port 7",
        ),
        (
            ["--http-address=127.0.0.1", "--http-port=7", "--grpc-port=7"],
            "HTTP and gRPC cannot both be served on port 7, where 127.0.0.1 and 0.0.0.0 overlap",
        ),
        (
            ["--grpc-port=8002", "--allow-http=false"],
            "gRPC and metrics cannot both be served on 0.0.0.0, port 8002",
        ),
        (
            ["--http-address=unix:/a", "--grpc-address=unix:/a"],
            "HTTP and gRPC cannot both be served on unix:/a",
        ),
        (["--grpc-use-ssl=1"], "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
        (
            ["--http-use-ssl=1", "--http-server-cert=/no/such.pem"],
            "--http-server-cert: expected a PEM file, got '/no/such.pem'",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault(capsys, REQUIRED, *arguments).startswith(line)


def test_a_repository_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert fault(capsys).startswith("--model-repository is required")


def test_mutual_tls_needs_a_root_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    files = [f"--grpc-server-cert={pem}", f"--grpc-server-key={pem}"]
    line = fault(capsys, REQUIRED, "--grpc-use-ssl-mutual=true", *files)
    assert line == "--grpc-use-ssl-mutual needs --grpc-root-cert"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http-port=0", "--grpc-port=0", "--metrics-port=0"],
        ["--http-address=127.0.0.1", "--grpc-address=127.0.0.2", "--http-port=7", "--grpc-port=7"],
        ["--http-address=unix:/a", "--grpc-address=unix:/b", "--http-port=7", "--grpc-port=7"],
        ["--http-port=8001", "--allow-grpc=false"],
    ],
)
def test_services_that_do_not_meet_may_have_one_port(arguments: list[str]) -> None:
    assert parse_command_line([REQUIRED, *arguments], {}).warnings == ()


@pytest.mark.parametrize(("argument", "begin"), [("--help", "usage: "), ("--version", "tritrio ")])
def test_help_and_version_go_to_standard_output(
    argument: str, begin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line([argument], {})
    assert caught.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(begin)
    assert [line for line in printed.out.splitlines() if len(line) > 100] == []
