"""The adapters to network servers: what speaks ChirpStack's or Calin's own language, and nothing else.

`contract` says what a network is, `signals` what one tells by itself. The engine and the surfaces touch
those two and the adapter classes; what an adapter keeps inside (channels, logins, messages) stays here.

`chirpstack`         push: commands go out over gRPC
`chirpstack_events`  push: what ChirpStack's HTTP integration posts, read as signals
`calin_v1`, `calin_v2`  pull: commands are tasks of a vending API, asked after until they end

A third network is one module with one class under `contract.Network`:

1. `send` hands one order over and returns the server's id for it. What it raises is a `SendError` that
   says whether the server has *certainly* nothing of it. When in doubt it is not certain: the engine then
   keeps a retry back until the outcome is known, and nothing is done twice.
2. Push networks add `look` and `withdraw`; pull networks add `poll`. A question that was not answered is
   a `NetworkError`, never a guess.
3. What the server tells by itself is read by a pure function into signals, with ids that are the same
   however often an event is sent; `remuda.devices.ingress` stores them before it answers.

Adapters decide nothing and keep no state of a command, so that several replicas can use one each.
"""
