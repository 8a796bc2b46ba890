"""Who makes the batches: worker processes, this process, or torch's own engine.

All keep the protocol in `backend`.
"""
