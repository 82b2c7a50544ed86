"""Federated algorithms: each file one :class:`~fedgeo.protocol.FedAlgorithm` factory or its plain maths."""
