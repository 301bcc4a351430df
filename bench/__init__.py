"""Benchmarks. They print ratios, because a single figure depends mostly on the machine."""
