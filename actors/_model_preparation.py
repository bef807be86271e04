"""From the files of a model to what can be loaded; blocking, so it runs on a worker thread."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf

from ..backends.base import Backend, ModelSource
from ..backends.batch_strategy import BatchStrategy, load_batch_strategy
from ..backends.openai_settings import (
    TOKENIZER,
    TOKENIZER_BYTES_MAX,
    OpenAiSettings,
    openai_settings,
    tokenizer_file,
)
from ..backends.registry import get_backend
from ..protocol.config_detection import detect_backend
from ..protocol.config_ensemble import composing_models
from ..protocol.config_rules import ConfigContext, is_ensemble, normalise
from ..protocol.config_text import parse_model_config
from ..protocol.config_validation import validate, warnings_of
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.sequence_tensors import initial_state_files
from ..protocol.version_policy import select_versions
from ..protocol.wording import quoted
from ._repository_policy import ModelFiles
from ._repository_scan import CONFIG_NAME, read_regular_file

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparationSettings:
    """How configurations are made complete.

    Attributes:
      auto_complete_config: Whether what is missing is taken from the files of the models.
      backend_settings: Backend name ("" for all) -> settings of the backend.
      load_max_s: How long the caller waits for `prepare_model`, in seconds.
    """

    auto_complete_config: bool = True
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    load_max_s: float = inf


LABELS_BYTES_MAX = 64 * 1024**2
"""One label file; a million labels of sixty bytes."""

STATE_BYTES_MAX = 1024**3
"""One file of an initial state: as large as a request may be."""


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """One version, ready to be loaded, or why it cannot be.

    Attributes:
      version: Its number.
      backend: What executes it; None for an ensemble.
      source: Where its files lie.
      config: Its final configuration; None if there is an error.
      labels: Output name -> its class labels, by index.
      initial_files: State input name -> content of the file of its initial state.
      strategy: Its own say in what joins a batch; owned by whoever takes the version.
      openai: What it says for OpenAI's API.
      error: What is wrong with it.
    """

    version: int
    backend: Backend | None
    source: ModelSource
    config: ModelConfig | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    initial_files: Mapping[str, bytes] = field(default_factory=dict)
    strategy: BatchStrategy | None = None
    openai: OpenAiSettings = field(default_factory=OpenAiSettings)
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model, ready to be loaded.

    Attributes:
      files: Where it came from.
      selected: The numbers of the versions to serve, ascending; at least one.
      versions: Those of them that are to be loaded.
    """

    files: ModelFiles
    selected: tuple[int, ...]
    versions: tuple[PreparedVersion, ...]

    @property
    def needed(self) -> frozenset[str]:
        """The models that its versions are made of, if it is an ensemble."""
        return frozenset(
            model
            for version in self.versions
            if version.config is not None
            for model in composing_models(version.config)
        )


def prepare_model(
    files: ModelFiles, settings: PreparationSettings, unchanged: Collection[int] = ()
) -> PreparedModel:
    """Return the versions to serve.

    Args:
      files: Where the model lies.
      settings: How its configuration is made complete.
      unchanged: Versions that are loaded already.

    Raises:
      RequestError: the configuration is at fault, or no version is selected.
    """
    config = _written_config(files, settings)
    backend = None if is_ensemble(config) else get_backend(config.backend)
    selected, missing = select_versions(config.version_policy, files.versions)
    for version in missing:
        _logger.error("model %r has no version %d, which version_policy names", files.name, version)
    if not files.versions:
        raise invalid_argument(
            f"model '{files.name}' has no version directory, such as '{files.directory / '1'}'"
        )
    if not selected:
        raise invalid_argument(
            f"model '{files.name}': its version_policy selects none of the versions there are, "
            f"which are {list(files.versions)}"
        )
    own = {
        **settings.backend_settings.get("", {}),
        **settings.backend_settings.get("" if backend is None else backend.name, {}),
    }
    sources = [
        ModelSource(
            name=files.name,
            version=version,
            model_directory=files.directory,
            version_directory=files.directory / str(version),
            backend_settings=own,
            complete_max_s=settings.load_max_s,
        )
        for version in selected
        if version not in unchanged
    ]
    versions = [
        _prepare_version(source, config, backend, complete=settings.auto_complete_config)
        for source in sources
    ]
    return PreparedModel(files, tuple(selected), tuple(versions))


def written_needs(files: ModelFiles) -> frozenset[str]:
    """Return the models that the configuration, as it is written, makes an ensemble of."""
    try:
        config = files.config or parse_model_config(
            files.config_text or b"", file=str(files.config_path)
        )
    except RequestError:  # it will not load
        return frozenset()
    return frozenset(composing_models(config))


def _written_config(files: ModelFiles, settings: PreparationSettings) -> ModelConfig:
    """Return the configuration as it is written, with its backend detected."""
    if files.config is not None:
        config = files.config
    elif files.config_text is not None:
        config = parse_model_config(files.config_text, file=str(files.config_path))
    elif settings.auto_complete_config:
        config = ModelConfig()
    else:
        raise invalid_argument(
            f"model '{files.name}' needs a {CONFIG_NAME}, because configurations are not "
            "completed automatically"
        )
    if files.renamed:
        config = deepcopy(config)
        config.name = ""
    first = next(iter(files.versions.values()), ())
    config = detect_backend(config, model_name=files.name, version_files=first)
    if not (config.backend or is_ensemble(config)):
        what = "platform" if config.platform else "default_model_filename"
        raise invalid_argument(
            f"model '{files.name}': no backend could be determined from its {what} "
            f"{quoted(config.platform or config.default_model_filename)}; expected a backend too"
        )
    return config


def _prepare_version(
    source: ModelSource, config: ModelConfig, backend: Backend | None, *, complete: bool
) -> PreparedVersion:
    context = ConfigContext(preferred_count=0 if backend is None else backend.cpu_instance_count)
    try:
        if complete and backend is not None:
            config = backend.complete_config(source, config)
        config = normalise(config, context=context)
        validate(config, context=context)
        labels = _read_labels(source, config)
        initial_files = _read_initial_files(source, config)
        openai = _openai_settings(source, config)
        strategy = load_batch_strategy(source, config)
    except RequestError as error:
        return PreparedVersion(source.version, backend, source, error=error)
    for warning in warnings_of(config):
        _logger.warning("%s", warning)
    return PreparedVersion(
        source.version, backend, source, config, labels, initial_files, strategy, openai
    )


def _read_labels(source: ModelSource, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Read the label files of the outputs, which lie in the model's directory.

    Raises:
      RequestError: a file lies elsewhere, is missing or is too large.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.output:
        if not output.label_filename:
            continue
        where = f"label_filename {quoted(output.label_filename)} of output {quoted(output.name)}"
        content = _read_inside(source, output.label_filename, where, LABELS_BYTES_MAX)
        try:
            labels[output.name] = tuple(content.decode().splitlines())
        except UnicodeDecodeError as error:
            raise invalid_argument(
                f"model '{source.name}': {where} cannot be read: {error}"
            ) from error
    return labels


def _read_initial_files(source: ModelSource, config: ModelConfig) -> dict[str, bytes]:
    """Read the files of the initial states of sequences.

    Raises:
      RequestError: as `_read_labels`.
    """
    return {
        name: _read_inside(source, file, f"initial state of {quoted(name)}", STATE_BYTES_MAX)
        for name, file in initial_state_files(config).items()
    }


def _openai_settings(source: ModelSource, config: ModelConfig) -> OpenAiSettings:
    """Return what the configuration, with its tokenizer, says for OpenAI's API.

    Raises:
      RequestError: as `_read_labels`, or it is wrong.
    """
    file = tokenizer_file(config)
    content = None
    if file is not None:
        where = f"{TOKENIZER} {quoted(file)}"
        content = _read_inside(source, file, where, TOKENIZER_BYTES_MAX)
    return openai_settings(config, content)


def _read_inside(source: ModelSource, name: str, where: str, bytes_max: int) -> bytes:
    """Read a file that must lie in the model's directory."""
    root = source.model_directory.resolve()
    try:
        path = (root / name).resolve()
        if path.is_relative_to(root):
            return read_regular_file(path, bytes_max)
    except RequestError as error:
        raise invalid_argument(f"model '{source.name}': {where}: {error.message}") from None
    except (OSError, ValueError) as error:  # the latter of a NUL in the name
        raise invalid_argument(f"model '{source.name}': {where} cannot be read: {error}") from error
    raise invalid_argument(f"model '{source.name}': {where} must lie in the model's directory")
