"""Folders of images: which files, their pixels, the part that is wanted, in rows of a batch."""
