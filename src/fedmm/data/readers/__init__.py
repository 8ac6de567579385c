"""Readers for the file formats of users' own data."""
