"""Methods whose server weighs the clients, and which go for another mixture of them than their mean."""
