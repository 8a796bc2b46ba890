"""The rooms of the house: imports go down the floors only, and never in a circle."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import feedline

PACKAGE = Path(feedline.__file__).parent
# From the top floor down: a room may import those after it, and itself.
ROOMS = (
    "cli",
    "running",
    "train",
    "integrations",
    "tuning",
    "profile",
    "cache",
    "loader",
    "engine",
    "images.compile",
    "images",
    "sources",
    "throughput",
    "randomness",
    "order",
    "timing",
    "machine",
    "system",
    "private_names",
    "text",
    "errors",
)
# Methods for convenience, which import when they are called.
CALLED_LATER = {("feedline.loader.dataloader", "feedline.profile")}
# Modules of the engine that run a torch Dataset or make tensors; worker pools are without them.
WITH_TORCH = {
    "attribute_changes",
    "attribute_snapshot",
    "attribute_walk",
    "batch_layout",
    "dataset_fetch",
    "device_transfer",
    "devices",
    "normalise",
    "worker_errors",
    "generators",
    "tensor_dataset",
}


def test_only_the_loader_reads_its_private_attributes():
    for name, path in modules().items():
        if not name.startswith("feedline.loader."):
            assert not re.search(r"\._runtime\b|loader\._index_sampler", path.read_text()), name


def modules():
    """Every module's name and file, except feedline itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("feedline", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(part for part in parts if part != "__init__")
        if name not in ("feedline", "feedline.__main__"):
            found[name] = path
    return found


MODULES = modules()


def imports_of(name):
    """The feedline modules that a module imports, wherever in it, with their lines."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("feedline."):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: a relative import"
            if node.module and node.module.split(".")[0] == "feedline":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield node.lineno, inner if inner in MODULES else node.module


def room_of(module):
    inner = module.removeprefix("feedline.")
    return "images.compile" if inner.startswith("images.compile") else inner.split(".")[0]


def test_every_package_has_its_layer():
    assert {room_of(name) for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name):
    floor = ROOMS.index(room_of(name))
    up = [
        f"line {line}: {imported}"
        for line, imported in imports_of(name)
        if imported != "feedline"
        and (name, imported) not in CALLED_LATER
        and ROOMS.index(room_of(imported)) < floor
    ]
    assert not up


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: {imported for _, imported in imports_of(name)} for name in MODULES}
    assert list(TopologicalSorter(graph).static_order())


def packages_in(nodes):
    """Packages that some of the nodes of a module import."""
    tops = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            tops |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            tops.add(node.module.split(".")[0])
    return tops


@pytest.mark.parametrize("room", ["images", "images.compile", "loader", "sources", "engine"])
def test_no_module_imports_torchvision_or_timm_when_it_is_loaded(room):
    for name in filter(lambda name: room_of(name) == room, MODULES):
        tops = packages_in(ast.parse(MODULES[name].read_text()).body)
        assert not tops & {"torchvision", "timm"}, name


def test_worker_pools_import_neither_images_nor_torch():
    for name in MODULES:
        if room_of(name) in ("engine", "order", "timing", "system", "private_names", "errors"):
            if name.removeprefix("feedline.engine.") in WITH_TORCH:
                continue
            tops = packages_in(ast.walk(ast.parse(MODULES[name].read_text())))
            assert not tops & {"torch", "torchvision", "PIL", "cv2", "simplejpeg"}, name
            for _, imported in imports_of(name):
                assert imported.removeprefix("feedline.engine.") not in WITH_TORCH, name
                assert not imported.startswith("feedline.images."), name


def test_every_source_file_that_the_architecture_names_exists():
    text = (PACKAGE.parents[1] / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`(?:src/feedline/)?([\w/]+\.(?:py|c))`", text))
    known = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.*")]
    tests = Path(__file__).parent
    known += [f"tests/{path.relative_to(tests).as_posix()}" for path in tests.rglob("*.py")]
    assert len(named) > 20
    missing = {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)}
    assert not missing


def test_no_two_files_of_tests_share_a_name():
    """Pytest imports them by it, from folders that are no packages."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
