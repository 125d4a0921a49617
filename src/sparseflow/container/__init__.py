"""What `prepare` writes and an engine runs: .sfi files of experts, dense.safetensors and a manifest
(docs/sfi_format.md).
"""
