"""The code in the README and the pages: Python blocks run, `feedline` commands parse."""

import gc
import multiprocessing
import pickle
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import typer.main
from PIL import Image
from torch import nn

import feedline

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
WIDEST = 88
"""Columns of a code block that fit a page of 1300 px."""

_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SMALLER = [
    (r"\b(\d+)x10\b", r"\1x1"),  # epochs
    (r"num_workers=8\b", "num_workers=1"),
    (r"steps=20\b", "steps=5"),
    (r'"resnet(18|50)"', '"test_resnet"'),
    (r"(ResNetConfig\()", r"\1hidden_sizes=[8] * 4, depths=[1] * 4, "),
    (r'"/nvme/', '"nvme/'),
    (r'"nccl"', '"gloo"'),
    *([] if torch.cuda.is_available() else [(r'"cuda"', '"cpu"')]),
]
NEEDS = {  # packages that the blocks of a page need in addition to feedline's dependencies
    "accelerate": ("accelerate",),
    "lightning": ("lightning",),
    "other-frameworks": ("timm",),
    "remote-data": ("s3fs", "moto"),
    "sources": ("lmdb",),
    "train": ("timm", "safetensors"),
    "transformers": ("transformers", "accelerate"),
}

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="tests run apart from the repository")


def blocks(page, *languages):
    """The code blocks of a page in some languages."""
    return [code for language, code in _FENCED.findall(page.read_text()) if language in languages]


def named(page):
    return page.relative_to(ROOT).with_suffix("").as_posix()


def with_python():
    return [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def in_data_folder(jpeg_folder, tmp_path, monkeypatch):
    """The working directory has the data that the pages name, in small."""
    splits = ("train", "val", "imagenet/train", "imagenet/val", "demo-data/train")
    for name in (*splits, "photos", "web"):
        shutil.copytree(jpeg_folder, tmp_path / name)
    files = sorted(jpeg_folder.rglob("*.jpg"))
    names = [path.relative_to(jpeg_folder) for path in files]
    rows = [f"train/{name},{number % 2}" for number, name in enumerate(names)]
    for table in ("train.csv", "more.csv"):
        (tmp_path / table).write_text("\n".join(["path,label", *rows]) + "\n")
    tags = [
        f"train/{name},{'cat dog' if number % 2 else 'cat'}" for number, name in enumerate(names)
    ]
    (tmp_path / "tags.csv").write_text("\n".join(["path,label", *tags]) + "\n")
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for path, name in zip(files, names, strict=True):
            archive.write(path, name)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    with Image.open(files[0]) as image:
        image.save(tmp_path / "images/0.jpg")
        Image.new("L", image.size).save(tmp_path / "masks/0.png")
    (tmp_path / "depth/rooms").mkdir(parents=True)
    Image.new("I;16", (64, 48)).save(tmp_path / "depth/rooms/0.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    start_method = multiprocessing.get_start_method()
    if sys.platform == "linux":  # a page is no file that a worker of another method could import
        multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(start_method, force=True)


def old_lmdb(path, files):
    """An LMDB of pickled (bytes of a file, label), as pages call one to be converted."""
    import lmdb

    with lmdb.open(path).begin(write=True) as filling:
        for number, file in enumerate(files):
            filling.put(b"%09d" % number, pickle.dumps((file.read_bytes(), number % 2)))


def exported(file):
    from feedline.train.model import TrainedModel, create_model, export_safetensors

    name, classes = "test_resnet.r160_in1k", ["cat", "dog"]
    model = create_model(name, classes=2, sizes=(32,))
    about = TrainedModel(Path("best.pt"), name, model, torch.device("cpu"), classes, 32, None)
    export_safetensors(about, Path(file))


def small_world():
    """Names that the code blocks of a page use without defining them: a model and its step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(images, labels):
        if images.dtype == torch.uint8:
            images = images.float()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {
        "__name__": "__main__",
        "model": model,
        "optimizer": optimizer,
        "train_step": train_step,
    }


def run(page, *also):
    """Execute the Python blocks of a page one after another, as one program in small."""
    names = small_world()
    for number, code in enumerate(blocks(page, "python"), 1):
        for pattern, instead in (*_SMALLER, *also):
            code = re.sub(pattern, instead, code)
        exec(compile(code, f"{named(page)}, Python block {number}", "exec"), names)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    names.clear()
    gc.collect()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("in_data_folder")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument", "ignore:::lightning.*")
@pytest.mark.parametrize("page", with_python(), ids=named)
def test_the_python_blocks_of_a_page_run(page, jpeg_folder, monkeypatch):
    for package in NEEDS.get(page.stem, ()):
        pytest.importorskip(package)
    if page.stem == "cache":
        feedline.build_cache("train", "train-cache", (128, 192, 256))
    if page.parent.name == "start":
        feedline.build_cache("train", "demo-cache", (64, 96, 128))
    if page.stem == "sources":
        old_lmdb("old.lmdb", sorted(jpeg_folder.rglob("*.jpg")))
    if page.stem == "train" and page.parent.name == "how-to":
        exported("model.safetensors")
    if page.stem == "torchrun":
        for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
            monkeypatch.setenv(name, "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    if page.stem == "remote-data":
        from s3_server import Bucket, serving

        with serving() as server:
            run(page, ("s3://bucket/train", Bucket(server).fill("train", Path("train"))))
    else:
        run(page)


def commands(page):
    """The arguments of each `feedline` command of a page."""
    found = []
    for code in blocks(page, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "feedline" in words:
                found.append(words[words.index("feedline") + 1 :])
    return found


@pytest.mark.parametrize(
    ("page", "arguments"),
    [(page, arguments) for page in PAGES for arguments in commands(page)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else named(value),
)
def test_a_command_of_a_page_parses(page, arguments):
    from feedline.cli.app import app

    command = typer.main.get_command(app)
    context, rest = None, arguments
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(arguments[0], rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_code_block_is_wider_than_a_page(page):
    code = _FENCED.findall(page.read_text())
    wide = [line for _, text in code for line in text.splitlines() if len(line) > WIDEST]
    assert wide == []
