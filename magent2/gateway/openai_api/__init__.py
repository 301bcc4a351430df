"""The OpenAI-compatible API (`/v1`): responses, chat completions and models over sessions."""
