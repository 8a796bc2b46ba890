"""The planted bottlenecks, one module per topic."""
