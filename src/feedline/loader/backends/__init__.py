"""Who makes the batches: worker processes, this process, or torch's own engine.

All derive from the class in `backend`.
"""
