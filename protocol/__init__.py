"""Floor 0: what travels, as pure data and sans-io sessions."""
