"""A site's rows: its share of the experiment's data set, an npz file or pictures."""

from fedmm.sites.rows import SiteRows, site_rows

__all__ = ["SiteRows", "site_rows"]
