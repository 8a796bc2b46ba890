"""The rules: each looks for one cause in the facts, and says what would help, or None."""
