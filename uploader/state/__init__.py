"""The state of a partition. Events change it, and result in actions."""
