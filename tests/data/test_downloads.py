"""Downloads from a server of our own on the loopback interface: what is fetched, kept and refused."""

import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedgeo import data
from fedgeo.data import downloads

CONTENT = {"toy/train.csv": b"1,2\n3,4\n", "toy/test.csv": b"5,6\n"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        self.server.asked.append(self.path)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A publisher with one data set, and a registry that knows it; yields what it serves, and what was asked."""
    served = tmp_path / "publisher"
    for name, content in CONTENT.items():
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        (served / name).write_bytes(content)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=served)) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        lines = [
            f"{name} {hashlib.sha256(content).hexdigest()} http://127.0.0.1:{server.server_port}/{name}"
            for name, content in CONTENT.items()
        ]
        registry = tmp_path / "registry.txt"
        registry.write_text("# a comment\n" + "\n".join(lines))
        monkeypatch.setattr(downloads, "REGISTRY", registry)
        yield served, server.asked
        server.shutdown()


def test_a_data_set_arrives_whole_and_is_fetched_once(published, tmp_path):
    _, asked = published
    told = []
    folder = data.download("toy", tmp_path / "data", on_file=lambda *step: told.append(step))
    assert folder == tmp_path / "data" / "toy"
    assert {f"toy/{path.name}": path.read_bytes() for path in folder.iterdir()} == CONTENT
    assert told == [("toy/train.csv", 2), ("toy/test.csv", 2)]
    data.download("toy", tmp_path / "data")
    assert len(asked) == 2


def test_what_arrives_damaged_is_refused_and_leaves_no_file(published, tmp_path):
    served, _ = published
    (served / "toy/test.csv").write_bytes(b"5,7\n")
    with pytest.raises(ValueError, match="hash of downloaded file"):
        data.download("toy", tmp_path / "data")
    assert [path.name for path in (tmp_path / "data" / "toy").iterdir()] == ["train.csv"]


def test_a_file_of_the_users_own_is_never_replaced(published, tmp_path):
    _, asked = published
    own = tmp_path / "data" / "toy" / "test.csv"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(ValueError, match=r"test\.csv is there and is not the publisher's"):
        data.download("toy", tmp_path / "data")
    assert own.read_text() == "mine"
    assert asked == []


def test_a_file_that_the_publisher_lacks_is_named_and_the_rest_kept(published, tmp_path):
    served, _ = published
    (served / "toy/test.csv").unlink()
    with pytest.raises(
        ConnectionError, match=r"could not fetch toy/test\.csv from http://127.*kept, so try again"
    ):
        data.download("toy", tmp_path / "data")
    assert (tmp_path / "data" / "toy" / "train.csv").read_bytes() == CONTENT["toy/train.csv"]


@pytest.mark.parametrize(
    ("name", "words"), [("PSM", "by hand from eBay"), ("nothing", "no data set 'nothing'")]
)
def test_what_cannot_be_fetched_says_where_it_is(name, words):
    with pytest.raises(ValueError, match=words):
        data.download(name)


def test_the_registry_agrees_with_copies_of_the_published_files(data_root, tmp_path):
    """The byte-identical copies of SMD and Adult pass as the publishers' own; nothing is asked of any server."""
    assert data.downloadable() == ("SMD", "adult", "covertype")
    for name in ("SMD", "adult"):
        assert data.download(name, data_root) == data_root / name
