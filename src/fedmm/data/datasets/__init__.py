"""The data sets that an experiment can name, one in each file."""
