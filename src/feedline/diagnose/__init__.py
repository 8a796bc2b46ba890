"""From what was measured of a run to what holds it back, and what would help."""
