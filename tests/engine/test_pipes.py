"""Spawned workers whose pipes hold as little as those of macOS and Windows."""

from processes import outcome

BOTH_DIRECTIONS = """
import multiprocessing.connection
import socket

import numpy as np
import psutil
import feedline

BYTES = 8 << 10
ROWS = 4000


def small_pipe(duplex=True):
    ends = socket.socketpair()
    for end in ends:
        for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, which, BYTES // 2)  # Linux doubles it
    return tuple(multiprocessing.connection.Connection(end.detach()) for end in ends)


class Numbers:
    def __len__(self):
        return 10 * ROWS

    def __getitems__(self, numbers):
        return [np.full(4, number) for number in numbers]


def firsts(loader, kill_at=None):
    for step, batch in enumerate(loader):
        if step == kill_at:
            psutil.Process(loader.worker_pids[0]).kill()
        yield from batch[:, 0].tolist()


if __name__ == "__main__":
    options = {"shuffle": True, "seed": 1}
    with feedline.DataLoader(Numbers(), ROWS, **options) as loader:
        expected = list(firsts(loader))
    assert sorted(expected) == list(range(10 * ROWS))
    multiprocessing.connection.Pipe = small_pipe
    options |= {"num_workers": 1, "prefetch_factor": 8, "start_method": "spawn"}
    with feedline.DataLoader(Numbers(), ROWS, **options) as loader:
        assert list(firsts(loader, kill_at=2)) == expected
    print("complete")
"""


def test_keys_and_batches_larger_than_a_pipe_do_not_block_each_other(tmp_path):
    said, warned = outcome(BOTH_DIRECTIONS, tmp_path)
    assert said == "complete", warned
    assert "resource_tracker" not in warned  # no memory was left for it to free
