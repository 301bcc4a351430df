"""The demo model: deterministic and offline. `script` decides what it answers, `model` is the SDK model."""
