"""`sidetier explain`: gather facts about one record from every source, and decide where it is."""
