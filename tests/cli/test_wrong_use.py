"""Wrong use of any command is one message, before anything is done."""

import shlex
import shutil
import tempfile

import pytest
from command_line import assert_refused

from feedline import build_cache

TRAIN = "train {set} --model test_resnet.r160_in1k --batch-size 8 --workers 0 --device cpu"
SHORT = f"{TRAIN} --schedule 32x1"
MODEL = "--device cpu --workers 0"
TUNE = "tune {set} --step-ms 3"
FUNCTION = "tune feedline.errors:UsageError"
BUILD = "cache build {photos} cache"
PLAN = "cache plan {photos} --schedule 16x1"
PREDICTED = "workers=8,cores=16,gpu=2"
SEED = f"--seed must be a whole number from 0 to {2**63 - 1}, got '1.5'"

# A command line, with {set} of images, its {photos} for training, and a {run}; words of the error.
WRONG = [
    ("fly",),
    ("",),
    ("cache",),
    ("train x --wings",),
    ("run --wings x", "no such option: --wings"),
    ("demo-data",),
    ("demo-data d --num-classes 40", "error: --num-classes must be from 2 to 12, got 40"),
    # Benchmarks
    ("bench {set} --image-size 0", "error: --image-size ", "1 to 16384", "0"),
    ("bench {set} --image-size x", "error: --image-size must be a whole number, got 'x'"),
    ("bench {set} --image-size 16384 --batch-size 1000000", "MiB of memory", "--batch-size"),
    ("bench {set} --workers many", "--workers", "'many'"),
    ("bench {set} --seconds nan", "--seconds", "nan"),
    ("bench {set} --against x", "error: --against must be 'torch', got 'x'"),
    ("bench nowhere", "no such folder", "demo-data"),
    ("bench .", "no class folders, it is empty"),
    ("bench {bare}", "without images, 1 of 1: 'ant'"),
    ("explain-overlap {set} --workers 0", "--workers"),
    ("explain-overlap {set} --step-ms 0", "--step-ms"),
    # Caches
    (f"{BUILD} --sizes 16,x", "--sizes", "'16,x'"),
    (f"{BUILD} --sizes 4", "from 8 to 8192", "4"),
    (f"{BUILD} --sizes 16 --quality 0", "error: --quality ", "1 to 100", "0"),
    (f"{BUILD} --sizes 16 --format zip", "zip", "webdataset"),
    (BUILD, "--sizes"),
    ("cache add-size c x", "error: PX must be a whole number, got 'x'"),
    ("cache verify {photos}", "is not a cache"),
    ("cache repair {file}", "is not a cache", "a file"),
    ("cache plan {photos}", "--schedule"),
    ("cache plan {photos} --schedule 16", "cannot read '16'", "SIZExEPOCHS"),
    ("cache plan {photos} --schedule ownx3@4", "has no image sizes"),
    ("cache plan {photos} --schedule 64x1 --sizes 32", "image size 64 px"),
    ("cache plan {cache} --schedule 16x1", "cache"),
    (f"{PLAN} --disk lots", "--disk", "'lots'"),
    (f"{PLAN} --disk -5", "--disk", "got -5"),
    (f"{PLAN} --transform both", "both", "train"),
    # Checks
    ("doctor gone", "error: ", "hint: "),
    ("doctor --verify", "error: "),
    ("doctor {cache} --verify", "feedline cache verify {cache} --decode"),
    ("doctor {set} --measure --verify", "--measure"),
    ("report --html x.html", "--compare"),
    ("report a --compare b c", "--compare"),
    ("report --compare b c --html x.html", "--html"),
    ("report nowhere", "nowhere"),
    ("report {run} --json - --html -", "--html"),
    ("check {run}", "--max-wait-pct"),
    ("check {run} --max-wait-pct -1", "from 0 to 100, got -1.0"),
    ("check {run} --min-images-per-s 0", "above 0, got 0.0"),
    ("check {run} --min-images-per-s inf", "above 0, got inf"),
    # Training
    ("train . --lr", "error: option '--lr' requires an argument"),
    ("train . --lr fast", "error: --lr must be a number above 0, got 'fast'"),
    ("train . --seed 1.5", f"error: {SEED}"),
    (TRAIN.replace(" {set}", ""), "feedline train DIR", "feedline train --resume RUN"),
    (f"{TRAIN} --img-size 48 --epochs 0", "epochs"),
    (f"{SHORT} --epochs 3", "epochs needs", "--image-size"),
    (f"{SHORT} --image-size 32", "--image-size", "--epochs"),
    (f"{SHORT} --aa rand-m9-mstd0.5-inc1", "--aa must be", "9 of 30", "--aa rand"),
    (f"{SHORT} --cache {{one}}", "not a feedline cache"),
    (f"{SHORT} --sched step", "--sched must be", "'onecycle'", "hint: ", "--sched cosine"),
    (f"{SHORT} --opt lion", "--lr must be", "'lion'"),
    (f"{SHORT} --device gpu", "--device", "'gpu'", "'cpu'"),
    (f"{SHORT} --resume nowhere", "no checkpoint found"),
    (f"predict {{run}} {{set}} {MODEL} --topk 0", "--topk", "0"),
    (f"predict {{run}} {{set}} {MODEL} --on-error no", "--on-error", "no"),
    ("predict {run} none.jpg", "none.jpg"),
    ("predict {run} {empty}", "{empty}"),
    (f"evaluate {{run}} {{set}} {MODEL} --amp-dtype int8", "--amp-dtype", "int8"),
    ("evaluate {empty} {set}", "{empty}"),
    ("evaluate {run} {empty}", "{empty}"),
    # Tuning
    ("tune {set}", "--step-ms"),
    ("tune nowhere --step-ms 3", "nowhere"),
    ("tune {set} --step-ms -3", "milliseconds"),
    ("tune {set} --step-ms 1 --budget 0", "error: --budget "),
    ("tune {set} --model resnet81 --batch-size 8", "resnet"),
    ("tune {set} --model os.path:exists --device cpu", "--device cpu"),
    (f"{TUNE} --model resnet18", "--model or --step-ms"),
    (f"{TUNE} --batch-size 4096", "4096"),
    (f"{TUNE} --batch-size many", "'auto' or a whole number"),
    (f"{TUNE} --batch-size 0", "at least 1"),
    (f"{TUNE} --batch-size auto", "needs --model"),
    (f"{TUNE} --batch-size 8 --cache no-cache", "no-cache"),
    (f"{TUNE} --schedule 16", "16"),
    (f"{TUNE} --device cuda", "--device cuda"),
    (f"{TUNE} --what-if cache=256", PREDICTED),
    (f"{FUNCTION} --step-ms 3 --decode scaled", "--decode"),
    (f"{FUNCTION} --step-ms 3 --device cpu", "--device"),
    (f"{FUNCTION} --model resnet18", "MODULE:FUNCTION"),
]


@pytest.fixture(scope="module")
def places(tiny_set, trained, tmp_path_factory):
    """Files and folders that command lines name."""
    root = tmp_path_factory.mktemp("places")
    (root / "file").touch()
    (root / "empty").mkdir()
    (root / "bare" / "ant").mkdir(parents=True)
    shutil.copytree(tiny_set / "train" / "dark", root / "one" / "dark")
    build_cache(tiny_set / "train", root / "cache", [16], workers=0)
    own = {name: root / name for name in ("file", "empty", "bare", "one", "cache")}
    return {"set": tiny_set, "photos": tiny_set / "train", "run": trained, **own}


@pytest.mark.parametrize(
    ("line", "words"), [pytest.param(line, words, id=line) for line, *words in WRONG]
)
def test_wrong_use_is_an_error_before_anything_is_done(
    feedline, places, tmp_path, monkeypatch, line, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = feedline(*shlex.split(line.format(**places)))
    assert_refused(ended, *(word.format(**places) for word in words))
    assert ended.out == "" or not words, "help"
    assert list(tmp_path.iterdir()) == []
