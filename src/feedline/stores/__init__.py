"""Where images and their labels come from: folders, arrays, caches of smaller copies."""
