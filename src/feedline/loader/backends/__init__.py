"""Engines of a loader: worker processes, the training process, or torch's own engine.

All derive from the class in `backend`.
"""
