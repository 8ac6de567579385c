"""FedMM over Flower; what runs is in the package ``fedmm``."""
