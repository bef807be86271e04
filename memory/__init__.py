"""Floor 1: bytes and budgets."""
