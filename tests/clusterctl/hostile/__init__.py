"""Nodes in somebody else's hands: they answer what they like. Every command must bear them."""
