"""The loader: joins plan, engine and device.

`face` is what a user holds, `arguments` checks what they asked for, `planning` plans it, `choice`
says by which way and maker it goes, `user` looks at a user's dataset, `build` puts the engine
together, `slots` sizes the memory, `delivery` keeps feed, device and position in step, `explain`
says it all in words.
"""

from feedline.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
