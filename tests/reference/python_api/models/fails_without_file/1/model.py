"""Is not the file that the configuration names."""
