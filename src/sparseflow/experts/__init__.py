"""The experts of a container, all in memory or streamed through a bounded cache; both give the same bits."""
