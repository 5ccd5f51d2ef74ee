"""OGBench manipulation, in an interpreter of its own."""
