"""The public files behind the data sets: fetched, and checked byte for byte."""
