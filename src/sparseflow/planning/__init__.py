"""Does it fit: the one sum of memory that an engine needs, derived from a container's manifest and config alone."""
