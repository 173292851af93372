"""Several environments that are stepped together."""
