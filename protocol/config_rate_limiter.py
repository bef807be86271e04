"""What the rate limiter resources of a configuration must be.

Source: Triton's validation of `ModelRateLimiter`.
"""

from __future__ import annotations

from ._config_faults import fault
from .pb.inference import ModelConfig


def check_rate_limiter(config: ModelConfig) -> None:
    """Check the resources of all instance groups.

    Raises:
      RequestError: INVALID_ARG; names the model, the group and the resource.
    """
    is_global: dict[str, bool] = {}
    for group in config.instance_group:
        for resource in group.rate_limiter.resources if group.rate_limiter is not None else []:
            label = f"instance_group '{group.name}': rate_limiter resource '{resource.name}'"
            if resource.count < 1:
                raise fault(config, f"{label} must have a count of 1 or more, got {resource.count}")
            if is_global.setdefault(resource.name, resource.global_) != resource.global_:
                raise fault(
                    config,
                    f"{label} must be either global or of each device in the whole model, got both",
                )
