"""What a load request may say: names of models, and files in place of the repository.  Pure.

Source: Triton's checks of names and of the parameters `config` and `file:<path>`. All of them come
before anything is looked for on a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..protocol.config_ensemble import composing_models
from ..protocol.config_json import model_config_from_json
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.version_policy import parse_version
from ..protocol.wording import names_text, quoted, shown
from .model_control import LoadOverride

NAME_MAX_BYTES: Final = 255
"""What file systems take as the name of a directory."""

FILES_MAX: Final = 4096
"""Files of one load request; what they hold together is bounded by the size of a request."""

PATH_MAX_BYTES: Final = 1024
"""The path of one of them, far below what file systems take with the directory in front."""


def check_model_name(name: str) -> None:
    """Check that a name may be that of a model, and leads out of no repository.

    Raises:
      RequestError: INVALID_ARG.
    """
    if not name.strip():
        raise invalid_argument(f"expected the name of a model, got an empty one: {shown(name)}")
    if name.strip() in {".", ".."} or any(each in name for each in "/\\\0"):
        raise invalid_argument(
            f"expected a model name without directories, got {shown(name)}, which could lead out "
            "of the model repository"
        )
    size_bytes = len(name.encode(errors="surrogatepass"))
    if size_bytes > NAME_MAX_BYTES:
        raise invalid_argument(
            f"expected a model name of at most {NAME_MAX_BYTES} bytes, got {size_bytes}: "
            f"{shown(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise invalid_argument(f"expected a model name in UTF-8, got {shown(name)}") from None


def is_model_name(name: str) -> bool:
    """Return whether `check_model_name` takes a name."""
    try:
        check_model_name(name)
    except RequestError:
        return False
    return True


def check_override(name: str, override: LoadOverride) -> ModelConfig | None:
    """Return the configuration that a load request brings, None without.

    Raises:
      RequestError: INVALID_ARG; it is none, it is for another model, or a path is wrong.
    """
    if override.files and override.config_json is None:
        raise invalid_argument(
            f"model {quoted(name)}: files in place of the repository need a configuration too; "
            "expected the parameter 'config', got none"
        )
    _check_paths(override.files)
    if override.config_json is None:
        return None
    try:
        config = model_config_from_json(override.config_json)
    except RequestError as error:
        raise invalid_argument(
            f"model {quoted(name)}: its configuration is not valid: {error.message}"
        ) from None
    if config.name not in {"", name}:
        raise invalid_argument(
            f"model {quoted(name)}: expected its name or none in its configuration, got "
            f"{quoted(config.name)}; a model cannot be renamed by loading it"
        )
    for model in composing_models(config):
        if model and not is_model_name(model):
            raise invalid_argument(
                f"model {quoted(name)}: expected names of models in its ensemble_scheduling, got "
                f"{quoted(model)}"
            )
    return config


def _check_paths(files: Mapping[str, bytes]) -> None:
    if len(files) > FILES_MAX:
        raise invalid_argument(f"expected at most {FILES_MAX} files, got {len(files)}")
    directories: set[str] = set()
    for path in files:
        parts = path.split("/")
        if any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise invalid_argument(
                "expected a file inside the model's directory, '<version>/<path>', got "
                f"{quoted(path)}"
            )
        try:
            sizes = [len(part.encode()) for part in parts]
        except UnicodeEncodeError:
            raise invalid_argument(f"expected a path in UTF-8, got {quoted(path)}") from None
        if sum(sizes) + len(sizes) - 1 > PATH_MAX_BYTES or max(sizes) > NAME_MAX_BYTES:
            raise invalid_argument(
                f"expected a path of at most {PATH_MAX_BYTES} bytes with at most "
                f"{NAME_MAX_BYTES} between two slashes, got {quoted(path)}"
            )
        directories.update("/".join(parts[:count]) for count in range(1, len(parts)))
    if files and not any(parse_version(directory) is not None for directory in directories):
        raise invalid_argument(
            "expected a file in a version's directory, such as 'file:1/<path>', got none among "
            f"{names_text(files)}"
        )
    both = sorted(directories & files.keys())
    if both:
        raise invalid_argument(
            f"expected {quoted(both[0])} to be a file or a directory, got files for both"
        )
