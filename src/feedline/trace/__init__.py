"""Where the time of a step goes, on one clock."""
