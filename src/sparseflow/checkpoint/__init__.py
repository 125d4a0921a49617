"""What a publisher wrote, safetensors shards and config.json or a GGUF file, read without touching the payload."""
