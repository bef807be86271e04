"""The repository actor: finds the models, and owns their subtrees from load to unload.

There is one model control mode so far, NONE: everything is loaded at the start. The others would
make their own actions (see `_repository_policy`) and carry them out with the same `_perform`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple, assert_never, final

import trio

from ..backends.base import Backend, ModelSource
from ..backends.registry import get_backend
from ..protocol.config_detection import detect_backend
from ..protocol.config_rules import ConfigContext, is_ensemble, normalise
from ..protocol.config_text import parse_model_config
from ..protocol.config_validation import validate, warnings_of
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.pb.inference import ModelConfig
from ..protocol.version_policy import select_versions
from ._device_link import DeviceFactory, DeviceLink
from ._repository_policy import (
    Action,
    LoadModel,
    ModelFiles,
    RefuseModel,
    missing_versions,
    startup_actions,
)
from ._repository_scan import CONFIG_NAME, scan_repository
from .routing_table import FailedVersion, ModelEntry, ModelVersion
from .model import Model, ModelDefinition, reason_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
