"""What core itself provides, registered through the same hooks that any other package uses."""
