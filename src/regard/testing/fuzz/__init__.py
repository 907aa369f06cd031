"""A differential fuzzer: random calls against fp64 textbooks (`python -m regard.testing.fuzz`)."""
