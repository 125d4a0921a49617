"""Text to token ids and back, chat templates, and text that streams out whole characters only."""
