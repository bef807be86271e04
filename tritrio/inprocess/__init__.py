"""A server in the caller's own process: the same core as behind the network frontends, no sockets.

`Server` is for programs that run on trio, `BlockingServer` for scripts and notebooks.
"""

from .answers import Answer, Responses
from .blocking import BlockingModel, BlockingServer
from .server import Model, Server

__all__ = ["Answer", "BlockingModel", "BlockingServer", "Model", "Responses", "Server"]
