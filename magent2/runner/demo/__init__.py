"""The demo model: deterministic and offline."""
