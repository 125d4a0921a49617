"""A loaded model under a memory budget, and the token timelines that run on it."""
