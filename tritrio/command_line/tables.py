"""Every option there is, in the order of help."""

from __future__ import annotations

from typing import Final

from .clouds import CLOUDS
from .endpoints import GRPC, HTTP, SERVER
from .models import MODELS, SCHEDULING
from .observing import LOGS, METRICS, TRACES
from .unused import UNUSED

GROUPS: Final = (MODELS, SCHEDULING, SERVER, HTTP, GRPC, CLOUDS, METRICS, LOGS, TRACES, UNUSED)
OPTIONS: Final = tuple(option for group in GROUPS for option in group.options)
