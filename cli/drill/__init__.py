"""`sidetier drill`, step by step."""
