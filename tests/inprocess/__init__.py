"""The server in the caller's own process."""
