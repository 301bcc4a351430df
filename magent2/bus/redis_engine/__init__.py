"""Inside the Redis engine; `magent2.bus.redis_adapter` is its face."""
