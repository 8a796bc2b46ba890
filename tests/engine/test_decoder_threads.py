"""Workers decode each image with one thread, unless the program sets another number."""

import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
from torch.utils.data import Dataset

import feedline

SETTINGS = [
    ("PIL.AvifImagePlugin", "DEFAULT_MAX_THREADS"),
    ("pillow_heif.options", "DECODE_THREADS"),
]
SETTINGS = [each for each in SETTINGS if find_spec(each[0].split(".")[0]) and find_spec(each[0])]


class ThreadsOfDecoder(Dataset):
    """Samples that import a decoder; their value is its number of threads."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return getattr(import_module(self.module), self.name)

    def set_two(self, worker_id):
        setattr(import_module(self.module), self.name, 2)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "start_method", ["spawn", "fork", "forkserver"] if sys.platform == "linux" else ["spawn"]
)
def test_decoders_have_one_thread_from_the_second_task_on(setting, start_method):
    dataset = ThreadsOfDecoder(*setting)
    usual = dataset[0]
    for init, expected in ((None, 1), (dataset.set_two, 2)):
        with feedline.DataLoader(
            dataset,
            1,
            num_workers=1,
            worker_init_fn=init,
            multiprocessing_context=start_method,
        ) as loader:
            _, *later = (batch.item() for batch in loader)
        assert later == [expected, expected]
    assert dataset[0] == usual != 1
