"""Reports of a recorded run: in a terminal, as an HTML page, as JSON."""
