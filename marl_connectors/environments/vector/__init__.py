"""Several environments that are stepped together, in this process or in worker processes."""
