"""The handshake: checks of the server and of the user's rights, and the identity of the log."""

from __future__ import annotations

import uuid

from magent2 import __version__
from magent2.bus.operations import Info
from magent2.bus.records import LogInfo
from magent2.bus.redis_engine.exchanges import Keyspace
from magent2.bus.redis_engine.functions import SCHEMA_WITH_EPOCHS, Exchange
from magent2.errors import SchemaTooNew, StorageError, UnsupportedServer

REDIS_SCHEMA = 3  # how the engine stores a log under its prefix, in its first epoch
OLDEST_SERVER = (7, 0)


def info(keyspace: Keyspace, _: Info) -> Exchange[LogInfo]:
    """Check the server and the user's rights, then read the log's identity; the first call creates it."""
    warnings, details = yield from _check_server(keyspace)
    # Both verbs are tried here, so that missing rights are reported at start and by `magent2 doctor`. It also loads
    # the library once, before many operations at a time would find it missing.
    describe_nothing = keyspace.fcall("describe")
    for verb in ("FCALL_RO", "FCALL"):
        yield (verb, *describe_nothing[1:])
    schema, log_id, release = yield from _identity(keyspace)
    # Read it from the log: a server that accepts no writes at this moment has not checked our epoch yet.
    epoch = yield ("HGET", f"{keyspace.prefix}:meta", "epoch")
    known = (f"epoch {epoch.decode().partition(':')[0]}",) if epoch else ()
    return LogInfo("redis", schema, log_id, release, warnings, (*known, *details))


def _check_server(keyspace: Keyspace) -> Exchange[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Refuse servers that cannot hold a log. Returns warnings about settings that can lose records, and details."""
    try:
        reply = yield ("INFO",)
    except UnsupportedServer:
        raise
    except StorageError as error:
        lost = "lost records are not noticed"
        return (f"version, persistence, eviction and replication could not be checked, and {lost}: {error}",), ()
    facts = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
    name = "valkey" if "valkey_version" in facts else "redis"
    version = facts.get(f"{name}_version", "0")
    major, minor, *_ = (int(part) if part.isdigit() else 0 for part in f"{version}.0".split("."))
    if (major, minor) < OLDEST_SERVER:
        raise UnsupportedServer(f"this is {name} {version}; upgrade to Redis or Valkey 7.0 or newer")
    if facts.get("cluster_enabled") == "1":
        raise UnsupportedServer(
            "this is a Redis Cluster, which cannot append to several topics at once; use a single primary"
        )
    warnings = _unsafe_settings(facts)
    if keyspace.by_sentinel or facts.get("connected_slaves", "0") != "0":
        needed = yield from _replicas_to_write()
        if needed == "0":
            warnings.append(
                "min-replicas-to-write is 0: a primary that has lost its replicas goes on to acknowledge records,"
                " which a failover loses; set 'min-replicas-to-write 1' on every server"
            )
        return tuple(warnings), (f"min-replicas-to-write {needed}",)
    return tuple(warnings), ()


def _replicas_to_write() -> Exchange[str]:
    """The number of replicas without which the server refuses writes."""
    try:
        reply = yield ("CONFIG", "GET", "min-replicas-to-write")
    except StorageError:
        return "unknown: the user may not use CONFIG GET"
    return reply[1].decode() if reply else "unknown"


def _unsafe_settings(facts: dict[str, str]) -> list[str]:
    warnings = []
    if facts.get("aof_enabled") != "1":
        warnings.append("appendonly is off: a crash of the server loses acknowledged records; set 'appendonly yes'")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        warnings.append(f"maxmemory-policy is {policy}: a full server drops records; set 'maxmemory-policy noeviction'")
    return warnings


def _identity(keyspace: Keyspace) -> Exchange[tuple[int, str, str]]:
    """Read schema, id and first release of the log. HSETNX: of processes that start together, one sets them."""
    key = f"{keyspace.prefix}:meta"
    names = ("schema", "log_id", "release")
    found = yield ("HMGET", key, *names)
    if None in found:
        for name, value in zip(names, (str(REDIS_SCHEMA), str(uuid.uuid4()), __version__), strict=True):
            yield ("HSETNX", key, name, value)
        found = yield ("HMGET", key, *names)
    schema, log_id, release = (value.decode() for value in found)
    if int(schema) > SCHEMA_WITH_EPOCHS:
        raise SchemaTooNew(
            f"the log under {keyspace.prefix!r} has schema {schema}, this release supports {SCHEMA_WITH_EPOCHS};"
            " upgrade magent2"
        )
    if int(schema) < REDIS_SCHEMA:
        yield from _migrate(keyspace, int(schema))
    return max(int(schema), REDIS_SCHEMA), log_id, release


def _migrate(keyspace: Keyspace, schema: int) -> Exchange[None]:
    """Migrate a log of an older schema. Every step can be repeated, also by two processes.

    Schema 2 indexes the names of topics. A process of schema 1 that still runs does not index those that it creates.
    Schema 3 has one queue of ready lanes per agent and principal. Claims move lanes there (`adopt_ready_lanes`), also
    those that a process of schema 2 leaves behind later. Such a process does not find lanes of the new queues.
    An older process refuses the log when it next opens it.
    """
    for kind in (yield ("SMEMBERS", f"{keyspace.prefix}:kinds")) if schema < 2 else ():
        cursor: bytes | None = b"0" if kind.startswith(b":") else None  # deleted topics are not listed
        while cursor != b"0":
            cursor = yield keyspace.fcall("index_names", kind, cursor or b"0")
    yield ("HSET", f"{keyspace.prefix}:meta", "schema", str(REDIS_SCHEMA))
