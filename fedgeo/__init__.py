"""fedgeo."""
