"""Networks: the only room that imports ``flax.linen``; each file a :class:`~fedgeo.protocol.Model` factory."""
