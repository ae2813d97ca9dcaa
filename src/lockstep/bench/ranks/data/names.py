"""What the sides and the ways to start ranks are called; ranks import it, so it imports nothing itself."""

BIG, LIST, OURS = SIDES = ("one big tensor", "list of tensors", "Ragged")
SPAWN, SERVER = METHODS = ("spawn", "forkserver")
