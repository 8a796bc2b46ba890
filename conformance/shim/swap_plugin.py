"""A pytest plugin: feedline's DataLoader under that name in modules of a framework."""

from __future__ import annotations

import importlib
import os

import feedline

for name in os.environ["CONFORMANCE_MODULES"].split():
    module = importlib.import_module(name)
    assert hasattr(module, "DataLoader"), f"{name} has no DataLoader to put another in place of"
    module.DataLoader = feedline.DataLoader
