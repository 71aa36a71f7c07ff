"""What nodes say, believed only as far as it has the shape, size and characters that it must have."""
