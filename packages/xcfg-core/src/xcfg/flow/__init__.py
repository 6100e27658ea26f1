"""One file per journey; the only room that knows the order of the stages."""
