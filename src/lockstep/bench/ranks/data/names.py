"""What the three sides are called; ranks import it, so it imports nothing itself."""

BIG, LIST, OURS = SIDES = ("one big tensor", "list of tensors", "Ragged")
