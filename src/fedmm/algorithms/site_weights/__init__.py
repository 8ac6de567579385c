"""Algorithms whose server weights its clients, to optimise another mixture of them than their mean."""
