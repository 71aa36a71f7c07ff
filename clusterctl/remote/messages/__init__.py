"""Messages of nodes, accepted only with the expected shape, size and characters."""
