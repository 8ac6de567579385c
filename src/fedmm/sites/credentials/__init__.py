"""Keys, certificates and invitations, as both ends of a federation read and write them."""
