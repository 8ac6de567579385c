"""Keys, certificates and invitations, as both sides of a federation read and write them."""
