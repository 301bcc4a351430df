"""Schedules: messages that are sent at a time, after a duration, or again and again."""
