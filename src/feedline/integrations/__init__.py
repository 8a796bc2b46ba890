"""Adapters for training frameworks that replace, rebuild or hide a loader.

| module         | framework                          | adapter                                    |
| `accelerate`   | Hugging Face Accelerate            | `prepare`: of a feedline.DataLoader;       |
|                |                                    | `tracker`: of metrics of `feedline.watch`  |
| `transformers` | transformers.Trainer, and loops    | `Stepwise`: of a feedline.DataLoader       |
|                | that rebuild a loader              |                                            |
| `lightning`    | Lightning                          | `WatchCallback`: of `feedline.watch`       |
| `timm`         | timm's training script             | `create_loader`: timm's, with its          |
|                |                                    | signature and feedline's engine            |

Other frameworks use a feedline.DataLoader unchanged, see docs/how-to/other-frameworks.md.
To add an adapter, add a module with the framework's name that uses feedline's public objects. It
imports the framework at its top only to subclass one of its classes, and no other module of
feedline imports it. Test it with the real framework in tests/frameworks.
"""
