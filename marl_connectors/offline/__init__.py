"""Episodes on disk: writing, reading, and exchange with other formats."""
