"""Store the tail: committed records of active segments, in packs of many partitions, every few
seconds.

`board` has the led partitions as the daemon knows them. `cycle` asks the broker, reads, asks again
and looks again; `ranges` reads the log, `progress` knows what is stored, `packs` stores a pack,
`cleaning` removes what the archive has by now, and `writer` is the thread.
"""
