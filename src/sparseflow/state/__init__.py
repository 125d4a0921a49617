"""What one token timeline remembers: keys and values, delta-rule matrices, and the position."""
