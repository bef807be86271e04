"""Floor 3: the actors, and the pure policies they use."""
