"""Run files: a written run can be read, and anything else is rejected with a reason."""

import copy
import os
from dataclasses import replace

import pytest

from feedline.errors import UsageError
from feedline.timing.recorder import Recorder
from feedline.timing.run import (
    Event,
    Histogram,
    Loader,
    Pass,
    SlowSample,
    StageTime,
    ThroughputPoint,
    TimelineSample,
)
from feedline.timing.run_file import (
    MAX_BYTES,
    RUN_FILE,
    check_folder,
    merge_runs,
    read_run,
    write_run,
)


@pytest.fixture
def run():
    run = Recorder(settings={"model": "resnet18"}).run()
    run.loaders = [Loader(kind="torch", name="x", samples=3)]
    wait = Histogram()
    wait.add_all([1.0, 2.0, 300.0])
    run.passes = [Pass(loader=0, epoch=2, image_size=64, wait=wait, ended="left")]
    run.stages = [StageTime(name="transform: é", count=3, total_ms=1.5, longest_ms=1.0)]
    run.slowest = [SlowSample(name="/a/b.jpg", ms=12.0)]
    run.sample_sizes = {3: (4, 0.5)}
    event = Event(lane="step", stage="wait", begun_ms=0.0, ended_ms=1.0, batch=0)
    run.excerpts = [TimelineSample(why="latest", begun_s=1.0, events=[event])]
    return run


def test_run_round_trips_by_folder_or_file(run, tmp_path):
    folder = tmp_path / "runs" / "today"
    file = write_run(run, folder)
    assert file == folder / RUN_FILE
    assert read_run(folder) == read_run(str(file)) == run
    assert [path.name for path in folder.iterdir()] == [RUN_FILE]


def test_each_rank_has_a_file_and_a_folder_is_read_for_rank_0(run, tmp_path):
    write_run(run, tmp_path)
    run.rank = 3
    assert write_run(run, tmp_path).name == "trace-rank3.json"
    assert read_run(tmp_path).rank == 0
    assert read_run(tmp_path, rank=3).rank == 3
    with pytest.raises(UsageError, match=r"trace-rank1\.json cannot be read"):
        read_run(tmp_path, rank=1)


def rank_run(run, rank, wait_ms, *, started=1e9):
    wait = Histogram()
    wait.add_all([wait_ms] * 4)
    mine = Pass(loader=0, epoch=0, batches=5, samples=40, wait=wait, compute_cpu_ms=8.0)
    return replace(
        run, rank=rank, world_size=3, started=started, seconds=60.0, passes=[mine, mine], tasks=6
    )


def test_run_of_a_folder_has_the_times_of_all_ranks(run, tmp_path):
    for rank, wait_ms in enumerate((1.0, 2.0, 30.0)):
        write_run(rank_run(run, rank, wait_ms), tmp_path)
    for rank in range(3):
        found = read_run(tmp_path, rank)
        assert [each.rank for each in found.ranks] == [0, 1, 2]
        assert [each.wait.mean_ms for each in found.ranks] == [1.0, 2.0, 30.0]
        assert {(each.samples, each.compute_cpu_ms, each.tasks) for each in found.ranks} == {
            (80, 16.0, 6)
        }
    write_run(found, tmp_path / "copied")
    assert [each.rank for each in read_run(tmp_path / "copied", 2).ranks] == [0, 1, 2]


def test_ranks_of_another_training_and_damaged_files_are_left_out(run, tmp_path):
    write_run(rank_run(run, 0, 1.0), tmp_path)
    write_run(rank_run(run, 1, 2.0, started=1e9 - 5000), tmp_path)
    (tmp_path / "trace-rank2.json").write_text("{}")
    found = read_run(tmp_path)
    assert [each.rank for each in found.ranks] == [0]
    assert "rank 2" in " ".join(found.notes)


def test_merging_the_runs_of_two_starts_many_times_counts_each_step_once(run):
    run.passes = [replace(rank_run(run, 0, 1.0).passes[0], epoch=k) for k in range(150)]
    run.passes = copy.deepcopy(run.passes)
    run.course = [ThroughputPoint(begun_s=k, seconds=1.0, batches=5) for k in range(150)]
    run.seconds = 150.0
    for _ in range(3):
        merged = merge_runs(run, run)
        assert sum(each.wait.count for each in merged.passes) == 2 * 150 * 4
        assert sum(each.batches for each in merged.passes) == 2 * 150 * 5
        assert merged.stages[0].count == 2 * run.stages[0].count
        assert merged.sample_sizes == {3: (8, 1.0)}
        assert merged.slowest == run.slowest
        assert sum(each.batches for each in merged.course) == 2 * 150 * 5
        assert (len(merged.course) <= 200, merged.course[-1].begun_s > 290) == (True, True)


def test_a_truncated_file_is_damaged(run, tmp_path):
    data = write_run(run, tmp_path).read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / RUN_FILE).write_bytes(data[:length])
        with pytest.raises(UsageError, match="damaged"):
            read_run(tmp_path)


NESTED = '{"machine":[' + "[" * 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "run"),
        ('{"what": "other", "version": 1}', "run"),
        ("x", "run"),
        (NESTED, "damaged"),
        ('{"what": "feedline run", "version": 1, "run": ' + NESTED, "damaged"),
        ('{"what": "feedline run", "version": 99, "run": {"unknown": 1}}', "version 99"),
    ],
)
def test_invalid_run_is_rejected(text, said, tmp_path):
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(UsageError, match=said):
        read_run(tmp_path)


def test_missing_and_oversized_files_are_not_read(tmp_path):
    with pytest.raises(UsageError, match=r"no run at (?s:.*)feedline\.watch"):
        read_run(tmp_path)
    with (tmp_path / RUN_FILE).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UsageError, match="larger than 16 MiB"):
        read_run(tmp_path)


def test_read_only_folder_is_named_before_and_after_run(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="folder"):
        check_folder(tmp_path / "file" / "folder")
    with pytest.raises(UsageError, match="folder"):
        write_run(run, tmp_path / "file" / "folder")
    check_folder(tmp_path / "new")
    assert os.listdir(tmp_path / "new") == []


DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rank":0', b'"unknown":' + DEEP + b',"rank":0'),
        (b'"usable_cores":', b'"usable_cores":1000000000,"unknown":'),
        (b'"batches":0', b'"batches":1e300'),
        (b'"total_ms":0.0', b'"total_ms":-1.0'),
        (b'"longest_ms":300.0,"bins":{', b'"longest_ms":300.0,"bins":{"-1":1,'),
        (b'"name":"x"', b'"name":"\\ud800"'),
        (b'"batches":0', b'"batches":' + b"9" * 5000),
        (b'"total_ms":303.0', b'"total_ms":NaN'),
        (b'"total_ms":303.0', b'"total_ms":1e999'),
        (b'"longest_ms":300.0,"bins":{', b'"longest_ms":300.0,"bins":{"99999":1,'),
        (b'"sample_sizes":{"3"', b'"sample_sizes":{"999999999"'),
    ],
)
def test_malicious_file_is_damaged(old, new, run, tmp_path):
    file = write_run(run, tmp_path)
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new, 1))
    with pytest.raises(UsageError, match="damaged"):
        read_run(tmp_path)


def test_non_utf8_name_is_written_escaped(run, tmp_path):
    run.slowest = [SlowSample(name=os.fsdecode(b"/caf\xe9.jpg"), ms=12.0)]
    write_run(run, tmp_path)
    assert read_run(tmp_path).slowest == [SlowSample(name="/caf?.jpg", ms=12.0)]


def test_link_at_the_temporary_name_is_replaced(run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f".trace.json.{os.getpid()}.partial").symlink_to(tmp_path / "notes.txt")
    write_run(run, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "trace.json").is_symlink()
