"""A log that is moved SQLite → Redis → PostgreSQL → SQLite is unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import (
    Append,
    Claim,
    Compact,
    Delete,
    Erase,
    GetBlob,
    Info,
    Later,
    OwnedAppend,
    PutBlob,
    SetHead,
    Settle,
    Trim,
)
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from magent2.bus.transfer import backup, check_export, export_log, import_log
from magent2.errors import InvalidInput, NotEmpty, StorageUnwritable
from tests.support.engines import new_engines
from tests.support.postgres_server import Schemas
from tests.support.redis_server import RedisServer


def mail(agent: str, conversation: str, text: str) -> NewRecord:
    payload = {"conversation_id": conversation, "sender": "user:ann", "content": text}
    return NewRecord(f"chat:{agent}", payload, id=f"{conversation}-{text}", headers={"hops": 1})


def live_in(bus: Engine) -> None:
    """Leave behind one of everything that a log can hold."""
    blob = bus.call(PutBlob(b"picture"))
    bus.call(PutBlob(b"nobody names this"))
    for n in range(6):
        bus.call(Append(records=(mail("A", f"c{n % 3}", f"m{n}"), NewRecord(f"note:{n}", {"n": n}))))
    lanes = bus.call(Claim(worker="w", agents=("A",), limit=3, lease_s=60)).lanes
    bus.call(OwnedAppend(owner=lanes[0].owner, n=1, records=(NewRecord("stream:c0", {"text": "he"}, draft="t1"),)))
    closing = NewRecord("stream:c0", {"text": "hello"}, closes="t1", blobs=(blob,))
    bus.call(Settle(owner=lanes[0].owner, mail=(lanes[0].mail[0].ref,), records=(closing,)))
    bus.call(Compact("stream:c0", 0))
    bus.call(Later(owner=lanes[1].owner, delay_s=3600))
    bus.call(Later(owner=lanes[2].owner, delay_s=None))
    for n in range(10):
        bus.call(Append(records=(NewRecord("log:x", {"n": n}, id=f"x{n}"),)))
    bus.call(Trim("log:x", keep=4))
    bus.call(Erase("log:x", (8,)))
    bus.call(Append(records=(NewRecord("gone:x", {}),)))
    bus.call(Delete(("gone:x",)))
    bus.call(Append(records=(NewRecord("stream:h", {}),), heads=(SetHead("stream:h", {"owner": "ann", "n": [1, {}]}),)))


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert rows.pop()["kind"] == "end"
    return sorted(rows, key=lambda row: orjson.dumps(row, option=orjson.OPT_SORT_KEYS))


@pytest.mark.redis
@pytest.mark.postgres
def test_a_log_goes_through_all_engines_and_back(
    tmp_path: Path, redis_server: RedisServer, postgres_schemas: Schemas
) -> None:
    logs = [
        SqliteBus(tmp_path / "first.db"),
        RedisBus(redis_server.url, prefix="transfer"),
        connect(postgres_schemas.new_url()),
        SqliteBus(tmp_path / "last.db"),
    ]
    live_in(logs[0])

    files = [tmp_path / f"{number}.jsonl" for number in range(len(logs))]
    export_log(logs[0], files[0])
    for log, before, after in zip(logs[1:], files, files[1:], strict=False):
        import_log(log, before)
        export_log(log, after)

    assert [rows_of(file) == rows_of(files[0]) for file in files] == [True] * len(files)
    assert len({log.call(Info()).log_id for log in logs}) == 1
    for log in logs:
        log.close()


@pytest.fixture(
    params=[pytest.param("redis", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def server_log(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty log on a server."""
    bus = new_engines(request.param, request)()
    yield bus
    bus.close()


def test_work_goes_on_after_the_move(tmp_path: Path, server_log: Engine) -> None:
    old = SqliteBus(tmp_path / "old.db")
    live_in(old)
    export_log(old, tmp_path / "log.jsonl")

    import_log(server_log, tmp_path / "log.jsonl")
    (lane,) = server_log.call(Claim(worker="new", agents=("A",), limit=9, lease_s=60)).lanes
    repeat = server_log.call(Append(records=(mail("A", "c0", "m0"), NewRecord("note:0", {"n": 0}))))

    assert [record.id for record in lane.mail] == ["c0-m3"]
    assert repeat.repeat
    assert server_log.call(Append(records=(NewRecord("log:x", {}),))).seqs == (11,)
    old.close()


def test_a_log_with_records_takes_no_import(tmp_path: Path) -> None:
    bus = MemoryBus()
    live_in(bus)
    export_log(bus, tmp_path / "log.jsonl")

    with pytest.raises(NotEmpty):
        import_log(bus, tmp_path / "log.jsonl")


def test_a_file_that_was_cut_short_or_changed_writes_nothing(tmp_path: Path) -> None:
    bus, target = MemoryBus(), MemoryBus()
    live_in(bus)
    export_log(bus, tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:-1]))
    (tmp_path / "changed.jsonl").write_bytes(b"".join([lines[0], *lines[2:]]))

    for name, says in (("cut", "not a complete export"), ("changed", "changed or cut short"), ("none", "cannot read")):
        with pytest.raises(InvalidInput, match=says):
            import_log(target, tmp_path / f"{name}.jsonl")

    import_log(target, tmp_path / "log.jsonl")  # still empty, so it is taken


def test_an_export_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("precious")

    with pytest.raises(StorageUnwritable, match="exists already"):
        export_log(MemoryBus(), tmp_path / "log.jsonl")
    with pytest.raises(StorageUnwritable, match="choose another"):
        export_log(MemoryBus(), tmp_path / "no such folder" / "log.jsonl")

    assert (tmp_path / "log.jsonl").read_text() == "precious"


def test_a_backup_of_sqlite_opens_as_a_log(tmp_path: Path) -> None:
    bus = SqliteBus(tmp_path / "live.db")
    live_in(bus)

    backup(bus, tmp_path / "copy.db")
    copy = SqliteBus(tmp_path / "copy.db")

    assert [record.payload for record in copy.read("log:x")] == [record.payload for record in bus.read("log:x")]
    assert copy.call(GetBlob(bus.call(PutBlob(b"picture")))) == b"picture"
    bus.close()
    copy.close()


def test_a_backup_of_a_server_is_an_export(tmp_path: Path, server_log: Engine) -> None:
    live_in(server_log)

    backup(server_log, tmp_path / "copy.jsonl")

    assert check_export(tmp_path / "copy.jsonl").rows > 0
