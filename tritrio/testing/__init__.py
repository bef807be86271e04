"""Runs models in memory, on virtual time, to test how they are batched and what they answer.

The fixture `serve_models` of the pytest plugin, and the same function here.
"""

from .calls import Answer, Call
from .served_models import ExecutedBatch, ServedModels, serve_models

__all__ = ["Answer", "Call", "ExecutedBatch", "ServedModels", "serve_models"]
