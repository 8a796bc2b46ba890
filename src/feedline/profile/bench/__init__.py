"""Benchmarks of a loader on the user's images: rates, upper bound, cost per image."""
