"""What each case changes: the values of its side, and the gap between the sides."""
