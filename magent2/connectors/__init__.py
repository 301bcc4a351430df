"""Where `say` and `send_file` go: the session page, a console, a webhook; and the relay that feeds those outside."""
