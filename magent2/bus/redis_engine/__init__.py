"""Modules of the Redis engine. Use it through `magent2.bus.redis_adapter.RedisBus`."""
