"""Reports: made from run folders alone, so that they can be made anywhere, any time later."""
