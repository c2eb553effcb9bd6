"""A world of devices to work against: meters, gateways, the radio between them, and network servers.

Part of the product: in real time for demos (`chirpstack_grpc` and `webhooks` speak ChirpStack's own
protocols over sockets), in virtual time for tests (`virtual_time`, with `chirpstack_network` in the
place of the sockets). Everything waits by asyncio's timers alone and draws from random sources that are
seeded by name, so that one seed gives one history. Nothing in the rest of Remuda imports this room.

    meter               what a meter knows and does, and the truth of what it did
    gateway             half duplex, duty cycle, outages
    radio               loss, delays and failures of every leg, from one seed
    chirpstack          the network server's core: queues, scheduler, frames; no sockets. Its parts:
                        `session` (a device), `rounds` (when to look at one), `events` (their JSON)
    chirpstack_grpc     its API over gRPC
    webhooks            its events over HTTP
    chirpstack_network  its API and events inside the process
    virtual_time        an event loop whose time jumps to the next timer
"""
