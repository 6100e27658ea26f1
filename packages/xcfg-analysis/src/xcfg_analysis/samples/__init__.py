"""What one scoring of one case says per sequence, and intervals in which whole sequences are the draws."""
