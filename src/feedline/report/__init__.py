"""What is known of a run, shown: in a terminal, on a page, as JSON."""
