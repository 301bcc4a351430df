"""`magent2 serve` with several processes: a supervisor, and the gateways and workers that it keeps running."""
