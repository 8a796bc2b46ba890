"""Unmodified programs on feedline: `feedline run` and `feedline.patch()`.

| module    | does                                                                              |
| `launch`  | starts a program, with the settings in the environment                            |
| `start`   | hooks in a process of the program: its start, the import of torch, its end        |
| `hook/`   | the folder on the search path of a program that `feedline run` starts             |
| `patch`   | replaces torch's DataLoader, and records each loader                              |
| `compare` | the first batches of a loader, compared with those of torch                  |
| `records` | a run for each loader                                                             |
| `summary` | the loaders of a run in ten lines                                                 |
"""
