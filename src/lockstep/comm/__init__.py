"""How ranks meet and talk."""
