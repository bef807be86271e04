"""The options about models: repositories, loading, scheduling, caches."""

from __future__ import annotations

from typing import Final

from . import kinds
from .option import Group, Option

MODELS: Final = Group(
    "models",
    (
        Option(
            "--model-repository",
            kinds.DIRECTORY,
            "",
            "directory of model directories; required; repeatable",
            also="--model-store",
            repeatable=True,
        ),
        Option(
            "--model-control-mode",
            kinds.choice("none", "poll", "explicit"),
            "none",
            "how models come and go: none serves what is there at the start, poll follows the "
            "repositories, explicit loads and unloads on request",
            field="model_control",
        ),
        Option(
            "--load-model",
            kinds.NAME,
            "",
            "model to load at the start under explicit control, or * alone for all; repeatable",
            repeatable=True,
        ),
        Option(
            "--repository-poll-secs",
            kinds.SECONDS,
            "15",
            "time between two looks at the repositories under poll; 0 for none but the first",
            field="repository_poll_s",
        ),
        Option(
            "--exit-on-error",
            kinds.BOOL,
            "true",
            "end the start if a model cannot be loaded; otherwise serve the others",
            field="exit_on_error",
        ),
        Option(
            "--strict-readiness",
            kinds.BOOL,
            "true",
            "be ready only while every model is",
            field="strict_readiness",
        ),
        Option(
            "--disable-auto-complete-config",
            kinds.BOOL,
            "false",
            "take configurations as they are written, and require them",
            alone=True,
        ),
        Option(
            "--strict-model-config",
            kinds.BOOL,
            "false",
            "the same",
            instead="--disable-auto-complete-config",
        ),
        Option(
            "--model-config-name",
            kinds.NAME,
            "",
            "read configs/NAME.pbtxt of a model in place of config.pbtxt, where it is",
            field="model_config_name",
        ),
        Option(
            "--model-load-thread-count",
            kinds.COUNT,
            "4",
            "models that load at a time",
            field="model_load_threads",
        ),
        Option(
            "--model-load-retry-count",
            kinds.NATURAL,
            "0",
            "how often a load that failed is tried again",
            field="model_load_retries",
        ),
        Option(
            "--model-load-timeout-secs",
            kinds.LIMIT_S,
            "0",
            "give up a model that takes longer to complete its configuration, or to load an "
            "instance; 0 for never",
            field="model_load_timeout_s",
        ),
        Option(
            "--model-namespacing",
            kinds.BOOL,
            "false",
            "let models of one name lie in several repositories",
            field="model_namespacing",
        ),
        Option(
            "--backend-config",
            kinds.BACKEND_SETTING,
            "",
            "setting of one backend or of all, such as default-max-batch-size=8; repeatable",
            repeatable=True,
        ),
    ),
)

SCHEDULING: Final = Group(
    "scheduling and memory",
    (
        Option(
            "--rate-limit",
            kinds.choice("off", "execution_count"),
            "off",
            "whether instances of all models take turns, and share resources",
        ),
        Option(
            "--rate-limit-resource",
            kinds.RESOURCE,
            "",
            "how much of a resource there is, on one device or on each; repeatable",
            repeatable=True,
        ),
        Option(
            "--instance-hang-secs",
            kinds.LIMIT_S,
            "0",
            "replace an instance whose execution takes longer; 0 for never",
            field="instance_hang_s",
        ),
        Option(
            "--overload-queue-age-secs",
            kinds.LIMIT_S,
            "0",
            "refuse a model's requests of low priority while its others wait longer than this "
            "for an instance; 0 for never",
            field="overload_queue_age_s",
        ),
        Option(
            "--byte-budget",
            kinds.BYTES,
            "4294967296",
            "most bytes of request bodies and unsent responses held at once",
            field="byte_budget",
        ),
        Option(
            "--allow-client-shm",
            kinds.BOOL,
            "false",
            "let clients register shared memory",
            field="allow_client_shared_memory",
        ),
        Option(
            "--cache-config",
            kinds.CACHE_SETTING,
            "",
            "keep responses of models with response_cache, in this process (local,size=BYTES) or "
            "in redis (redis,host=HOST redis,port=PORT ...); repeatable",
            repeatable=True,
        ),
        Option(
            "--response-cache-byte-size",
            kinds.BYTES_OR_NONE,
            "",
            "the same as --cache-config local,size=BYTES",
            instead="--cache-config",
        ),
    ),
)
