"""Image folders: files, decoding, crops, and rows of a batch."""
