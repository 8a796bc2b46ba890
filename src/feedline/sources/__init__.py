"""Sample stores (bytes and labels): folders, arrays, archives, caches of resized copies."""
