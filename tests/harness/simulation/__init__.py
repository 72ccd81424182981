"""Simulation of sidecars, brokers and a store, in one thread at a time, repeatable from a seed.

- `world`: configuration of an example, drawn before it begins.
- `replicas`: brokers and their logs: appends, replication, elections, retention.
- `sidecars`: the real engine of each sidecar, driven by the simulation.
- `commands`: commands of an operator, as `sidetier gc`.
- `network`: requests in flight. Their `Fate` decides whether they arrive and are answered.
- `stepped_store`: the store as a sidecar sees it; each request passes through `network`.
- `disk`: calls of a sidecar to its disk that fail for a while.
- `laws`: the invariants that are checked at every moment.

Where a new fault belongs: a request that is lost, late or refused is a `Fate`. A store that behaves
differently for everyone uses `FakeStorage.fail` or a subclass of `InterceptedStore`. A fault that
lasts for a whole example is a field of `World`. To add a fault without changing the examples that
seeds draw, derive the test from `test_protocol.py` with `WORLDS.map`, as
`test_protocol_disasters.py` does.
"""
