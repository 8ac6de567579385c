"""The page's template, style and program."""
