"""The analysis of a run as one document, and as a page for a person."""
