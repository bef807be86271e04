"""The "llm" backend: models that generate text, step by step for many requests at once."""

from __future__ import annotations

from typing import final

from ...protocol.pb.inference import ModelConfig
from ..base import InstancePlace, ModelInstance, ModelSource
from .configuration import completed
from .executor import LlmInstance
from .settings import read_settings


@final
class LlmBackend:
    """Makes models of a `model.json` and an ONNX graph or a Python class; docs/llm.md has them."""

    name = "llm"
    stacks_inputs = False
    cpu_instance_count = 1

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:
        """Return the configuration with the tensors that all such models have.

        Raises:
          RequestError: it contradicts them, or the settings are missing or wrong.
        """
        config = completed(config)
        read_settings(source, config.default_model_filename)
        return config

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new, not yet loaded instance."""
        return LlmInstance(source, config, place)
