"""One file per signature; catalogue.py lists them."""
