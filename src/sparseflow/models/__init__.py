"""Model families: one file for each Hugging Face model_type, over shared layers."""
