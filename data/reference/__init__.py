"""Published and recomputed reference values, each file with its source."""
