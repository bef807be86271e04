"""What tells a model from all others: its key.  Pure: no trio, no clock, no I/O.

The key of a model is its name, or `<namespace>/<name>` where models of one name may lie in several
repositories. A namespace is the path of a repository, and a name has no slash, so a key says both.
Source: Triton's namespaces, which it prints as `<namespace>::<name>`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, final

from ..protocol.errors import RequestError, invalid_argument
from ..protocol.wording import about_model, quoted, without_model


def key_of(namespace: str, name: str) -> str:
    """Return the key of a model; its name where there are no namespaces ("")."""
    return f"{namespace}/{name}" if namespace else name


def name_of(key: str) -> str:
    """Return the name in a key; a namespace begins with a slash."""
    return key.rpartition("/")[2] if key.startswith("/") else key


def namespace_of(key: str) -> str:
    """Return the namespace in a key; "" if there is none."""
    return key.rpartition("/")[0] if key.startswith("/") else ""


def printed(key: str) -> str:
    """Return how the log names the model of a key."""
    return "::".join(key.rsplit("/", 1)) if key.startswith("/") else key


def said_of(key: str, message: str) -> str:
    """Return what the log says of the model of a key, given a message that may name it, too."""
    if name_of(key) != key:
        message = without_model(name_of(key), message)
    return about_model(printed(key), message.rstrip(";\n"))


def ambiguous(name: str, keys: Collection[str]) -> RequestError:
    """Return the error for a name that several models have."""
    return invalid_argument(
        f"expected a name that one model has, got {quoted(name)}, which {len(keys)} models have; "
        "only a namespace tells them apart, and requests name none"
    )


class KnownModel(Protocol):
    """What there is of a model."""

    @property
    def wanted(self) -> bool:
        """Whether it was asked for, and not unloaded since."""

    @property
    def unloaded(self) -> bool:
        """Whether it was unloaded since it was asked for."""


@final
class ModelNames:
    """Which models a name stands for.

    Args:
      models: Model key -> what there is of it.

    Attributes:
      are_keys: Whether each name is the key of its model, since no model has a namespace.
    """

    def __init__(self, models: Mapping[str, KnownModel]) -> None:
        self._models = models
        self._keys: dict[str, list[str]] = {}
        self.are_keys = not any(key.startswith("/") for key in models)
        if not self.are_keys:
            for key in models:
                self._keys.setdefault(name_of(key), []).append(key)

    def unique(self) -> dict[str, str]:
        """Return name -> key of those names that a request may use."""
        candidates = {
            name: keys if len(keys) == 1 else self.candidates(name)
            for name, keys in self._keys.items()
        }
        return {name: keys[0] for name, keys in candidates.items() if len(keys) == 1}

    def key(self, name: str, namespace: str = "") -> str:
        """Return the key of the model that a name stands for.

        Args:
          name: The model's name.
          namespace: Of the model that uses it: a model there goes before others; "" for requests.

        Raises:
          RequestError: INVALID_ARG; several models have the name, and none is in the namespace.
        """
        keys = self.candidates(name, namespace)
        if len(keys) > 1:
            raise ambiguous(name, keys)
        return keys[0]

    def candidates(self, name: str, namespace: str = "") -> list[str]:
        """Return the keys of the models that a name may stand for, at least one; see `key`.

        Models that merely lie in a repository, or were unloaded, make no name ambiguous.
        """
        own = key_of(namespace, name)
        if namespace and own in self._models and not self._models[own].unloaded:
            return [own]
        keys = self._keys.get(name, [])
        return [key for key in keys if self._models[key].wanted] or keys[:1] or [own]
