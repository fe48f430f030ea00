"""What is left behind ends with a whole line, whatever happens between."""

from __future__ import annotations

import io

import pytest

from isoinfer.batch.writer import LineWriter


class _Torn(io.FileIO):
    """Writes half of what it is given, then fails, as often as told."""

    failures = 0

    def write(self, data) -> int:
        if self.failures:
            self.failures -= 1
            super().write(bytes(data)[: len(data) // 2])
            raise KeyboardInterrupt
        return super().write(bytes(data)[:3])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def test_lines_follow_each_other_though_the_system_takes_few_bytes_at_a_time(path):
    writer = LineWriter(_Torn(path, "w"), end=0)
    writer.write(b"hello\n")
    assert path.read_bytes() == b"hello\n"
    writer.write(b"world\n")
    writer.close()
    writer.close()
    assert path.read_bytes() == b"hello\nworld\n"


def test_a_torn_line_is_cut_off(path):
    file = _Torn(path, "w")
    writer = LineWriter(file, end=0)
    writer.write(b"one\n")
    file.failures = 1
    with pytest.raises(KeyboardInterrupt):
        writer.write(b"two and more\n")
    assert path.read_bytes() != b"one\n"
    writer.close()
    assert path.read_bytes() == b"one\n"


def test_a_torn_line_can_be_written_again(path):
    file = _Torn(path, "w")
    writer = LineWriter(file, end=0)
    file.failures = 1
    with pytest.raises(KeyboardInterrupt):
        writer.write(b"two and more\n")
    writer.write(b"two and more\n")
    writer.close()
    assert (path.read_bytes(), writer.num_lines) == (b"two and more\n", 1)


def test_what_is_beyond_the_end_goes_at_once(path):
    path.write_bytes(b"keep\nold rubbish")
    writer = LineWriter(io.FileIO(path, "r+"), end=5)
    assert path.read_bytes() == b"keep\n"
    writer.close()


def test_the_disk_is_synced_every_few_seconds(path, monkeypatch):
    synced, now = [], [0.0]
    monkeypatch.setattr("os.fsync", synced.append)
    writer = LineWriter(io.FileIO(path, "w"), end=0, clock=lambda: now[0])
    for now[0] in (1.0, 4.9, 5.0, 6.0, 10.1):
        writer.write(b"x\n")
    assert len(synced) == 2
    writer.close()
    assert len(synced) == 3
