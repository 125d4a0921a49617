"""GGUF files, as llama.cpp's tools write them, read as if they were a publisher's checkpoint."""
