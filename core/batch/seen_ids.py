"""Which custom_ids a job has met, in constant memory: a temporary SQLite table that spills to disk by itself.

Ids are kept as 16-byte hashes, exact for any real purpose (collision odds for a billion ids: 1e-21).
"""

from __future__ import annotations

import sqlite3
from hashlib import blake2b

CACHE_KIB = 8192


class SeenIds:
    """A set of custom_ids with the line where each was first seen. At most about 8 MiB are in memory."""

    def __init__(self) -> None:
        # "" is a private database in a temporary file, which SQLite creates only once the cache is full.
        self._db = sqlite3.connect("", isolation_level=None)
        for pragma in (f"cache_size=-{CACHE_KIB}", "journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
            self._db.execute(f"PRAGMA {pragma}").close()
        self._db.execute("CREATE TABLE seen (id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID").close()

    def add(self, custom_id: str, line: int) -> int | None:
        """Remember an id. Returns the line it was first seen on, or None if it is new."""
        key = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, line)).rowcount:
            return None
        row = self._db.execute("SELECT line FROM seen WHERE id = ?", (key,)).fetchone()
        return int(row[0])

    def close(self) -> None:
        """Drop the table."""
        self._db.close()
