"""What the authors of a model recommend for its texts: `generation_config.json`.

Source: the file of that name that Hugging Face publishes models with; of its members, those that
vLLM takes as defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ...protocol.errors import RequestError, invalid_argument
from ...protocol.sampling_params import SamplingParams
from ...protocol.sampling_request import parse_sampling_params
from ...protocol.wording import shown
from .text_files import GENERATION_FILE, read_json

_LENGTH: Final = "max_new_tokens"
_MEMBERS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    _LENGTH,
)


def read_sampling_defaults(directory: Path) -> SamplingParams:
    """Return what counts where a request says nothing.

    Args:
      directory: The version directory; without the file, nothing is recommended.

    Raises:
      RequestError: INVALID_ARG; the file cannot be read, or a value in it is wrong.
    """
    given: dict[str, Any] = {}
    for member, value in read_json(directory / GENERATION_FILE).items():
        if member not in _MEMBERS or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_argument(
                f"{GENERATION_FILE}: expected a number as {member}, got {shown(value)}"
            )
        given["max_tokens" if member == _LENGTH else member] = value
    try:
        return parse_sampling_params(given)
    except RequestError as error:
        message = error.message.replace("'max_tokens'", f"'{_LENGTH}'")
        raise invalid_argument(f"{GENERATION_FILE}: {message}") from None
