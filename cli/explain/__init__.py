"""Where one record is now: facts gathered from every source, and a pure decision over them."""
