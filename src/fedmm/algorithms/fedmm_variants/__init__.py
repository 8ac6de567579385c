"""FedMM with another field, another server or another adversary; FedMM itself is beside this package."""
