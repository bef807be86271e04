"""A Triton-compatible inference server built from trio actors.

`model` makes a model of a function, `serve` serves it, and `export` writes it into a model
repository. `Server` and `BlockingServer` run models in the caller's process, without sockets;
`RequestError` and `ErrorCode` let it say what is wrong with a request.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inprocess import BlockingServer, Server
    from .model_functions import model
    from .protocol.errors import ErrorCode, RequestError
    from .serving import export, serve

__all__ = [
    "BlockingServer",
    "ErrorCode",
    "RequestError",
    "Server",
    "export",
    "model",
    "serve",
]

_MODULES = {
    "BlockingServer": ".inprocess",
    "Server": ".inprocess",
    "ErrorCode": ".protocol.errors",
    "RequestError": ".protocol.errors",
    "export": ".serving",
    "model": ".model_functions",
    "serve": ".serving",
}


if not TYPE_CHECKING:  # for whom any name would be one

    def __getattr__(name: str) -> Any:
        """Import what is asked for: whoever needs one module does not wait for the server."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name], __name__), name)
