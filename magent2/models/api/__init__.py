"""Request and response schemas of the HTTP API. The gateway answers with them; the client parses with them."""
