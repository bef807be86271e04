"""What Python models import as `pb_utils`; see `tritrio.backends.pb_utils`."""

from tritrio.backends.pb_utils import *  # noqa: F403 - the whole public module under its known name
