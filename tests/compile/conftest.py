"""Files that the tests of compiled pipelines read."""

import pytest

from feedline.images.codec_registry import Decoder
from image_inputs import write_pictures
from pair_inputs import write_pairs
from torchvision_folder import write_images


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of `write_images`."""
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of every kind, by their peculiarity."""
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Images and their masks."""
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def decoded_parts(monkeypatch):
    """The parts of images that are decoded from now on; None for a whole image."""
    parts, read = [], Decoder.read

    def recorded(self, by=1, part=None):
        parts.append(part)
        return read(self, by, part)

    monkeypatch.setattr(Decoder, "read", recorded)
    return parts
