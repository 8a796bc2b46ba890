"""Diagnosis of a recorded run: the bottleneck, and recommendations with predicted gains."""
