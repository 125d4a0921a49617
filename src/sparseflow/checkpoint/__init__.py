"""What a publisher wrote: safetensors shards and config.json, read without touching the payload."""
