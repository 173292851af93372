"""Pure functions, one idea a file, each with its source."""
