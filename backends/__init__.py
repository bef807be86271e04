"""Floor 2: what executes a batch on a device thread."""
