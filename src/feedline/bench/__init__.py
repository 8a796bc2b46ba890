"""Measures a loader on a user's own images: its rate, its ceiling, and what an image costs."""
