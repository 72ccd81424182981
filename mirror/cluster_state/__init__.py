"""Restore of a snapshot of a lost cluster: group offsets, ACLs, quotas, broker configs."""
