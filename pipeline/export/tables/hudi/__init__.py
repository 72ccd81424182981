"""Hudi tables. The commit's extra metadata contains the offsets."""
