"""Workers decode each image with one thread, unless the program sets another number."""

import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import pytest

import feedline
from sets import Made

SETTINGS = [
    ("PIL.AvifImagePlugin", "DEFAULT_MAX_THREADS"),
    ("pillow_heif.options", "DECODE_THREADS"),
]
SETTINGS = [each for each in SETTINGS if find_spec(each[0].split(".")[0]) and find_spec(each[0])]


def threads_of_decoder(module, name, index):
    return getattr(import_module(module), name)


def set_two(module, name, worker_id):
    setattr(import_module(module), name, 2)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "start_method", ["spawn", "fork", "forkserver"] if sys.platform == "linux" else ["spawn"]
)
def test_decoders_have_one_thread_from_the_second_task_on(setting, start_method):
    dataset = Made(3, partial(threads_of_decoder, *setting))
    usual = dataset[0]
    for init, expected in ((None, 1), (partial(set_two, *setting), 2)):
        options = {"worker_init_fn": init, "multiprocessing_context": start_method}
        with feedline.DataLoader(dataset, 1, num_workers=1, **options) as loader:
            _, *later = (batch.item() for batch in loader)
        assert later == [expected, expected]
    assert dataset[0] == usual != 1
