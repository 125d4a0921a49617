"""Evidence about a model and this engine: the identity ladder and perplexity. Measures and returns; prints nothing."""
