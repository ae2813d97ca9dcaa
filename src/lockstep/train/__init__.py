"""The training loop and the records it leaves."""
