"""Keys of OpenAI's API come from a file and from the environment, and are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritrio.command_line.assembly import API_KEYS_VARIABLE, parse_command_line
from tritrio.options import ServerOptions

REQUIRED = "--model-repository=models"


def options(*arguments: str, **environment: str) -> ServerOptions:
    return parse_command_line([REQUIRED, *arguments], environment).options


def test_keys_of_file_and_environment_count(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-one\n\n  sk-two \n")
    flag = f"--openai-api-key-file={file}"
    assert options(flag).openai_api_keys == ("sk-one", "sk-two")
    assert options(**{API_KEYS_VARIABLE: "sk-three, sk-four"}).openai_api_keys == (
        "sk-three",
        "sk-four",
    )
    both = options(flag, **{API_KEYS_VARIABLE: "sk-three"})
    assert both.openai_api_keys == ("sk-one", "sk-two", "sk-three")
    assert "sk-" not in repr(both)


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe", b"x" * 2_000_000])
def test_a_file_without_keys_lets_nobody_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        options(f"--openai-api-key-file={file}")
    assert caught.value.code == 1
    assert "--openai-api-key-file" in capsys.readouterr().err


def test_a_variable_without_keys_lets_nobody_in(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(**{API_KEYS_VARIABLE: " , "})
    assert API_KEYS_VARIABLE in capsys.readouterr().err
