"""Whether a normalised model configuration can be served, and why not.

Each check stands alone and raises INVALID_ARG with the model and the facts; the first one ends
the validation. Source: Triton's validation of `ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Final

from ._config_faults import fault, known_name
from ._config_schedulers import check_dynamic_batching, check_sequence_batching
from ._config_tensors import check_batch_tensors, check_tensors
from .config_detection import BACKEND_OF_PLATFORM, ENSEMBLE_PLATFORM, TENSORRT_PLATFORM
from .config_ensemble import check_ensemble
from .config_rate_limiter import check_rate_limiter
from .config_rules import ConfigContext, is_ensemble
from .metrics_config import FIRST_RESPONSE_FAMILY, unknown_families
from .pb.inference import ModelConfig, ModelInstanceGroup, ModelInstanceGroupKind
from .wording import quoted

INSTANCES_MAX: Final = 1024
"""Most instances of one model: each is a thread or a process."""
BATCH_STRATEGY_PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"


def validate(config: ModelConfig, *, context: ConfigContext) -> None:
    """Check a completed and normalised configuration.

    Args:
      config: With the defaults of `config_rules.normalise` written out.
      context: Where it is going to run.

    Raises:
      RequestError: INVALID_ARG; names the model, the tensor or group, and the field.
    """
    for check in _CHECKS:
        check(config)
    for group in config.instance_group:
        _check_group(config, group, context)


def warnings_of(config: ModelConfig) -> list[str]:
    """Return what is odd about a valid configuration, one sentence each, for the log."""
    warnings: list[str] = []
    if config.sequence_batching is not None and BATCH_STRATEGY_PARAMETER in config.parameters:
        warnings.append(
            f"model '{config.name}': {BATCH_STRATEGY_PARAMETER} does not work with "
            "sequence_batching; the default strategy is used"
        )
    sides = (("inputs", config.input), ("outputs", config.output))
    warnings += [
        f"model '{config.name}' has no {side}: its configuration names none, and its backend "
        "completes none"
        for side, tensors in sides
        if not tensors
    ]
    warnings += [
        f"model '{config.name}': model_metrics: the buckets of {quoted(family)} cannot be chosen, "
        f"only those of {FIRST_RESPONSE_FAMILY} can"
        for family in unknown_families(config)
    ]
    return warnings


def _check_name(config: ModelConfig) -> None:
    if not config.name:
        raise fault(config, "name is required")


def _check_backend(config: ModelConfig) -> None:
    if is_ensemble(config):
        return
    if not config.platform and not config.backend:
        raise fault(config, "one of platform and backend is required")
    if not config.platform:
        return
    backend = BACKEND_OF_PLATFORM.get(config.platform)
    if backend is None:
        raise fault(config, f"platform '{config.platform}' is unknown")
    if config.backend and config.backend != backend:
        raise fault(
            config,
            f"platform '{config.platform}' belongs to backend '{backend}', "
            f"got backend '{config.backend}'",
        )


def _check_ensemble(config: ModelConfig) -> None:
    if not is_ensemble(config):
        return
    if config.platform != ENSEMBLE_PLATFORM:
        raise fault(
            config,
            f"ensemble_scheduling requires platform '{ENSEMBLE_PLATFORM}', "
            f"got platform '{config.platform}'",
        )
    if config.ensemble_scheduling is None:
        raise fault(config, f"platform '{ENSEMBLE_PLATFORM}' requires ensemble_scheduling")
    if config.backend:
        raise fault(config, f"an ensemble has no backend, got backend '{config.backend}'")
    for field in ("instance_group", "optimization", "model_warmup"):
        if getattr(config, field) not in (None, []):  # an empty message is present
            raise fault(config, f"an ensemble must not have {field}")
    check_ensemble(config)


def _check_batch_size(config: ModelConfig) -> None:
    if config.max_batch_size < 0:
        raise fault(config, f"max_batch_size must not be negative, got {config.max_batch_size}")


def _check_cache(config: ModelConfig) -> None:
    cached = config.response_cache is not None and config.response_cache.enable
    policy = config.model_transaction_policy
    if cached and policy is not None and policy.decoupled:
        raise fault(
            config,
            "the response cache does not work with the decoupled transaction policy; "
            "disable response_cache",
        )


def _check_metrics(config: ModelConfig) -> None:
    controls = config.model_metrics.metric_control if config.model_metrics is not None else []
    for index, control in enumerate(controls):
        label = f"model_metrics: metric_control {index}"
        if control.metric_identifier is None:
            raise fault(config, f"{label} has no metric_identifier")
        if not control.metric_identifier.family:
            raise fault(config, f"{label}: its metric_identifier has no family")
        if control.histogram_options is None:
            raise fault(config, f"{label} has no histogram_options")
        buckets = control.histogram_options.buckets
        if not buckets:
            raise fault(config, f"{label}: its histogram_options have no buckets")
        if not all(map(isfinite, buckets)) or sorted(set(buckets)) != buckets:
            raise fault(
                config, f"{label}: expected buckets that are finite and ascend, got {buckets}"
            )


def _check_instances(config: ModelConfig) -> None:
    if not config.instance_group and not is_ensemble(config):
        raise fault(config, "at least one instance_group is required")
    total = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    if total > INSTANCES_MAX:
        raise fault(
            config, f"instance_group: expected at most {INSTANCES_MAX} instances, got {total}"
        )


def _check_group(config: ModelConfig, group: ModelInstanceGroup, context: ConfigContext) -> None:
    label = f"instance_group '{group.name}'"
    kind = known_name(config, f"{label} kind", ModelInstanceGroupKind(group.kind))
    if group.profile and config.platform != TENSORRT_PLATFORM and config.backend != "tensorrt":
        raise fault(config, f"{label}: profile is for TensorRT models only")
    if group.kind != ModelInstanceGroupKind.GPU:
        if group.gpus:
            raise fault(config, f"{label}: {kind} must not have gpus")
        return
    if not context.gpus:
        raise fault(config, f"{label}: {kind} needs a GPU, and this server has none")
    for gpu in group.gpus:
        if gpu not in context.gpus:
            usable = ", ".join(map(str, context.gpus))
            raise fault(
                config,
                f"{label}: GPU {gpu} cannot be used; the usable GPUs are {usable}, each of compute "
                f"capability {context.min_compute_capability} or more",
            )


_CHECKS: Final[tuple[Callable[[ModelConfig], None], ...]] = (
    _check_name,
    _check_backend,
    _check_ensemble,
    _check_batch_size,
    check_dynamic_batching,
    check_sequence_batching,
    _check_cache,
    _check_metrics,
    check_tensors,
    check_batch_tensors,
    _check_instances,
    check_rate_limiter,
)
