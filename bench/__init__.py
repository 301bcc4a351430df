"""Benchmarks. They print ratios, because a lone figure tells more about the machine than about the code."""
