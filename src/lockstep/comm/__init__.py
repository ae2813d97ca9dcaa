"""Communication between ranks: the shared-memory process group and what it is made of."""
