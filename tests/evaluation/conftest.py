"""No deadline for examples: the first one of a test pays for lazy imports, and machines are shared."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
