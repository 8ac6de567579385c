"""What a site's owner decides and can look up: the policy, its gate, and the audit log."""
