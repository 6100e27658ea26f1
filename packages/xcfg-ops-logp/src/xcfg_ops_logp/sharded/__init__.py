"""Selected log probabilities over a vocabulary that is split across ranks: one file for each way to merge."""
