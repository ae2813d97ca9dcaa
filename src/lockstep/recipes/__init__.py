"""The built-in recipes; none needs a download."""
