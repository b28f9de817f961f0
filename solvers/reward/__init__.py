"""Rewards, discounted or until a set of states is entered."""
