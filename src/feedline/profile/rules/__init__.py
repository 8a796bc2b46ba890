"""Rules: each looks for one cause in the facts, and returns a finding with the fix, or None."""
