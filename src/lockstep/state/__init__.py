"""The trained state as one plain state: described, hashed and streamed by whoever holds which part of it."""
