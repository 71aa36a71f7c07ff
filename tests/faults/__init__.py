"""Faults of nodes, networks, disks, ranks and the head, made during real runs on lab nodes."""
