"""Caches: smaller copies of all images, made once; what makes, checks and describes them."""
